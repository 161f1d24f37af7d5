"""The model that the arguments describe: code that builds it, weights to load, and saved pruning or quantization."""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.cli.command import UsageError
from sparsebit.cli.preflight import require_outputs
from sparsebit.cli.reference import call, resolve
from sparsebit.errors import SparsebitError, with_article
from sparsebit.quantization import QuantModel
from sparsebit.sparse import load as load_pruned
from sparsebit.storage.archive import require_expansion

_CODE = re.compile(r"GLOBAL ([\w.]+)")  # what torch names when it refuses to unpickle something
_NESTED = ("state_dict", "model_state_dict", "model")  # where training scripts put the weights


def open_model(arguments: argparse.Namespace, reference: str | None = None) -> nn.Module:
    """The model that the arguments describe, in evaluation mode, pruned if --pruned is given."""
    model = load_model(reference or arguments.model, arguments.weights)
    for folder in arguments.pruned:
        model = load_pruned(folder, model).eval()
    require_outputs(arguments, sum(parameter.nbytes for parameter in model.parameters()))
    return model


def open_compressed(arguments: argparse.Namespace) -> nn.Module:
    """The same, and quantized if --quantized is given."""
    model = open_model(arguments)
    return QuantModel.load(arguments.quantized, model).eval() if arguments.quantized else model


def require_device(name: str) -> None:
    """Raise an error if a config's device is not available."""
    try:
        torch.empty(0, device=None if name == "auto" else name)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device {name!r} is not available: {str(error).splitlines()[0]}", hint="add --set DEVICE=cpu"
        ) from error


def load_model(reference: str, weights: str | None = None) -> nn.Module:
    """Build a model from a reference and load its weights."""
    found = resolve(reference, "model")
    made = found if isinstance(found, nn.Module) or not callable(found) else call(found, reference, "model")
    if not isinstance(made, nn.Module):
        raise UsageError(
            f"{reference!r} is not a model",
            expected="a torch.nn.Module, or a function or class that makes one without arguments",
            got=with_article(type(made).__name__),
        )
    if weights is not None:
        fill(made, weights)
    return made.eval()


def fill(model: nn.Module, weights: str) -> None:
    """Load weights into a model; all names must match."""
    state = read_weights(Path(weights))
    if state and all(name.startswith("module.") for name in state):  # saved from DistributedDataParallel
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
    own = model.state_dict()
    for name, tensor in state.items():
        if tensor.is_complex() and name in own and not own[name].is_complex():
            raise UsageError(
                f"the weights do not fit the model: {name!r} would lose its imaginary part",
                where=weights,
                expected=str(own[name].dtype),
                got=str(tensor.dtype),
            )
    try:
        missing, unexpected = model.load_state_dict(state, strict=False)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()[1:]]
        raise UsageError(
            f"the weights do not fit the model: {len(lines)} tensors have a different shape",
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
        raise UsageError(f"no such weights file: {path}", hint=f"looked in {Path.cwd()}")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if zipfile.is_zipfile(path):
            require_expansion(path, 1.5)  # torch does not compress
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch, about the protocol of a pickle that it then refuses
            found: Any = torch.load(path, map_location="cpu", weights_only=True)
    except SparsebitError:
        raise
    except Exception as error:  # of pickle, zip files and torch, with no common base
        if isinstance(error, pickle.UnpicklingError) and _is_pickle(path):
            code = _CODE.search(str(error))
            raise UsageError(
                f"{path} contains more than tensors, and loading it could run code",
                got=code[1] if code else None,
                hint="if you trust it, load it once and save only the tensors: torch.save(model.state_dict(), FILE)",
            ) from error
        reason = str(error).splitlines()[0] if isinstance(error, SafetensorError) else "it cannot be read"
        raise UsageError(
            f"{path} is damaged or not a weights file: {reason if path.stat().st_size else 'it is empty'}",
            expected="safetensors, or a state dict saved by torch",
        ) from error
    for name in _NESTED:
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UsageError(
            f"{path} is not a state dict",
            expected="names and tensors",
            got=with_article(type(found).__name__),
        )
    return {str(name): tensor for name, tensor in found.items()}


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(1) == b"\x80" or zipfile.is_zipfile(path)


def _listed(what: str, names: list[str]) -> str | None:
    if not names:
        return None
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{what}: {', '.join(names[:4])}{more}"
