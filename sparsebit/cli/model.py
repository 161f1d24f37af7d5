"""The MODEL argument: code that builds a model, weights to fill it with, and what was already made of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.cli.command import UsageError
from sparsebit.cli.reference import call, resolve
from sparsebit.quantization import QuantModel
from sparsebit.sparse import load as load_pruned

_NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights


def add_model(parser: argparse.ArgumentParser, *, quantized: bool = False) -> None:
    """MODEL, --weights, --pruned, and --quantized where a command can use one."""
    parser.add_argument("model", metavar="MODEL", help="file.py:factory or package.module:factory")
    add_weights(parser)
    if quantized:
        parser.add_argument(
            "--quantized", metavar="FOLDER", help="what `sparsebit quantize` wrote for this model"
        )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """--weights and --pruned."""
    parser.add_argument(
        "--weights", metavar="FILE", help="weights to load: safetensors, or a state dict saved by torch"
    )
    parser.add_argument("--pruned", metavar="FOLDER", help="what `sparsebit prune` wrote for this model")


def open_model(arguments: argparse.Namespace, reference: str | None = None) -> nn.Module:
    """The model the arguments mean, in evaluation mode; pruned where they say so."""
    model = load_model(reference or arguments.model, arguments.weights)
    if arguments.pruned:
        model = load_pruned(arguments.pruned, model).eval()
    return model


def open_compressed(arguments: argparse.Namespace) -> nn.Module:
    """The same; quantized too where the arguments say so."""
    model = open_model(arguments)
    return QuantModel.load(arguments.quantized, model).eval() if arguments.quantized else model


def load_model(reference: str, weights: str | None = None) -> nn.Module:
    """Build a model from a reference and fill it with weights."""
    found = resolve(reference, "model")
    made = found if isinstance(found, nn.Module) or not callable(found) else call(found, reference, "model")
    if not isinstance(made, nn.Module):
        raise UsageError(
            f"{reference!r} is no model",
            expected="a torch.nn.Module, or a function or class that makes one without arguments",
            got=f"a {type(made).__name__}",
        )
    if weights is not None:
        fill(made, weights)
    return made.eval()


def fill(model: nn.Module, weights: str) -> None:
    """Load weights into a model; every name has to fit."""
    state = read_weights(Path(weights))
    if state and all(name.startswith("module.") for name in state):  # saved from DistributedDataParallel
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        raise UsageError(
            f"the weights do not fit the model: {len(lines)} tensors have another shape",
            where=weights,
            got="; ".join(lines[:3]),
            hint="build the model with the arguments it had when the weights were saved",
        ) from None
    if missing or unexpected:
        raise UsageError(
            "the weights do not fit the model",
            where=weights,
            expected=_listed("missing", missing),
            got=_listed("not in the model", unexpected),
            hint="build the model with the arguments it had when the weights were saved",
        )


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, without running any code from it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise UsageError(f"no such file of weights: {path}", hint=f"looked in {Path.cwd()}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, RuntimeError, EOFError, ValueError) as error:
        raise UsageError(f"{path} is damaged or no file of weights: {error}") from None
    except Exception as error:  # pickle's own errors: something in it that is no tensor
        raise UsageError(
            f"{path} holds more than tensors, and loading that could run code of whoever made it",
            got=str(error).splitlines()[0],
            hint="where you trust it, load it once and keep the tensors: torch.save(model.state_dict(), FILE)",
        ) from None
    for name in _NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UsageError(
            f"{path} is no state dict", expected="names and tensors", got=f"a {type(found).__name__}"
        )
    return {str(name): tensor for name, tensor in found.items()}


def _listed(what: str, names: list[str]) -> str | None:
    if not names:
        return None
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{what}: {', '.join(names[:4])}{more}"
