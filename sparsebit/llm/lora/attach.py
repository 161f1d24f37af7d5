"""Add adapters to the packed layers of a model, and remove them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.batches import device_of
from sparsebit.errors import SparsebitError
from sparsebit.llm.arguments import require_count, require_part, require_positive
from sparsebit.llm.blocks.calls import run_model
from sparsebit.llm.folders.source import tensor_files
from sparsebit.llm.folders.stored_tensors import open_tensors
from sparsebit.llm.language_model import LanguageModel, require_language_model
from sparsebit.llm.lora.layer import LoraLinear
from sparsebit.llm.packed.linear import PackedLinear
from sparsebit.llm.packed.stack import PackedStack
from sparsebit.llm.tokens import require_known, require_positions

DAMPING = 1e-4  # added to the second moments of the inputs, as a fraction of their mean


def add_lora(
    model: LanguageModel,
    *,
    rank: int = 16,
    alpha: float | None = None,
    dropout: float = 0.0,
    layers: str | Sequence[str] = ("*_proj",),
    floats: nn.Module | str | os.PathLike[str] | None = None,
    ids: Tensor | None = None,
) -> list[str]:
    """Add an adapter to every packed layer whose name matches; all other parameters are frozen.

    Args:
        model: the packed model; it is changed in place.
        rank: of the adapters.
        alpha: the adapter's output is multiplied by alpha / rank; by default twice the rank, or the rank with
            ``floats``.
        dropout: before the adapter, in training.
        layers: patterns of dotted names, or one.
        floats: the float model or its folder. With it the adapters start at the best approximation of the
            quantization error (LoftQ, with the grid unchanged); without it they start at zero. Not for models whose
            float weights were changed before (awq, smoothquant, rotate).
        ids: token ids [batch, length]. With them the error is weighted by the inputs of each layer (EoRA).

    Returns:
        the names of the layers.
    """
    require_language_model(model)
    require_count("rank", rank)
    require_part("dropout", dropout)
    alpha = alpha if alpha is not None else float(rank if floats is not None else 2 * rank)
    require_positive("alpha", alpha)
    names = find_layers(model.model, (layers,) if isinstance(layers, str) else layers)
    for name, one in lora_layers(model.model):
        if name in names:
            raise SparsebitError(
                "the layer already has an adapter", where=name, hint="call remove_lora(model) first"
            )
        if (one.rank, one.alpha, one.dropout) != (rank, alpha, dropout):
            raise SparsebitError(
                "all adapters of a model must have the same rank, alpha and dropout",
                where=name,
                expected=f"rank={one.rank}, alpha={one.alpha:g}, dropout={one.dropout:g}",
                got=f"rank={rank}, alpha={alpha:g}, dropout={dropout:g}",
            )
    if floats is not None and model.prepared:
        raise SparsebitError(
            f"{', '.join(model.prepared)} changed the weights before they were quantized",
            where="floats=",
            expected="a model that was quantized with the weights of the float model",
            hint="leave floats= out: the adapters then start at zero",
        )
    read = None if floats is None else _reader(floats)
    if ids is not None:
        if read is None:
            raise SparsebitError(
                "ids= has an effect only with floats=", hint="pass floats=, or leave ids= out"
            )
        ids = torch.as_tensor(ids)
        require_known(ids, model.model)
        require_positions(ids.shape[-1], model.model, "ids= to sequences of at most ")
    moments = {} if read is None or ids is None else second_moments(model.model, names, ids)
    made = {
        name: _adapter(model.model, name, rank, alpha, dropout, read, moments.get(name)) for name in names
    }
    for name, adapter in made.items():
        _set(model.model, name, adapter)
    model.model.requires_grad_(False)
    for _, one in lora_layers(model.model):  # including those added before
        one.lora_A.requires_grad_()
        one.lora_B.requires_grad_()
    return names


def packed_layers(model: nn.Module) -> dict[str, PackedLinear | LoraLinear]:
    """The layers that can have an adapter, or have one, by name; stacked experts cannot."""
    packed = {name: one for name, one in model.named_modules() if isinstance(one, PackedLinear | LoraLinear)}
    inside = {name for name, one in model.named_modules() if isinstance(one, LoraLinear | PackedStack)}
    return {name: one for name, one in packed.items() if name.rpartition(".")[0] not in inside}


def find_layers(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """The names of the layers that match; an error if there are none."""
    layers = packed_layers(model)
    names = [name for name in layers if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not names:
        ends = dict.fromkeys(f"*.{name.rpartition('.')[2]}" for name in layers)
        raise SparsebitError(
            "no packed linear layer matches",
            expected=f"layers= with some of {', '.join(ends)}" if ends else "a model with packed weights",
            got=", ".join(patterns[:3]),
        )
    return names


def _adapter(
    model: nn.Module,
    name: str,
    rank: int,
    alpha: float,
    dropout: float,
    read: Callable[[str], Tensor] | None,
    moments: Tensor | None,
) -> LoraLinear:
    """The adapter of one layer, started at the quantization error if the float weight can be read."""
    base = model.get_submodule(name)
    assert isinstance(base, PackedLinear)
    made = LoraLinear(base, rank, alpha, dropout)
    if read is None:
        return made
    weight = read(f"{name}.weight").to(base.packed.device, torch.float32)
    weight = weight.T if base.transposed else weight
    if weight.shape != base.shape:
        raise SparsebitError(
            "the weight of the float model has another size",
            where=name,
            expected=str(tuple(base.shape)),
            got=str(tuple(weight.shape)),
            hint="pass the model that was quantized as floats=",
        )
    b, a = low_rank(weight - base.held.numbers(torch.float32), rank, moments)
    made.lora_A.data[: len(a)] = a  # fewer than rank if the matrix has fewer rows or columns
    made.lora_B.data[:, : len(a)] = b / made.scaling
    return made


def remove_lora(model: LanguageModel) -> None:
    """Remove all adapters; the packed layers are unchanged."""
    require_language_model(model)
    for name, one in list(lora_layers(model.model)):
        _set(model.model, name, one.base)


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    """The layers with adapters, by name."""
    for name, one in model.named_modules():
        if isinstance(one, LoraLinear):
            yield name, one


def require_no_adapters(model: LanguageModel) -> None:
    """Raise an error for a model with adapters: files of the complete model would lose them."""
    if name := next((name for name, _ in lora_layers(model.model)), None):
        raise SparsebitError(
            "the model has adapters, which are saved apart from it",
            where=name,
            hint="call save_lora(model, folder) and remove_lora(model) first; load_lora puts the adapters back",
        )


def low_rank(lost: Tensor, rank: int, moments: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """B [out, rank] and A [rank, in] with the least ``|| (lost - B A) X ||``, from the second moments of X.

    Example:
        >>> b, a = low_rank(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), 1)
        >>> (b @ a).round(decimals=4).abs()
        tensor([[2., 0.],
                [0., 0.]])
    """
    if moments is None:
        u, s, v = torch.linalg.svd(lost, full_matrices=False)
        root = s[:rank].sqrt()
        return u[:, :rank] * root, root[:, None] * v[:rank]
    values, vectors = torch.linalg.eigh(moments.double())
    scale = values.clamp(min=DAMPING * float(values.mean())).sqrt()
    u, s, v = torch.linalg.svd(lost.double() @ (vectors * scale), full_matrices=False)
    root = s[:rank].sqrt()
    back = (v[:rank] / scale) @ vectors.T
    return (u[:, :rank] * root).float(), (root[:, None] * back).float()


@torch.no_grad()
def second_moments(model: nn.Module, names: list[str], ids: Tensor) -> dict[str, Tensor]:
    """The sum of x xᵀ over the inputs of each layer that a token reaches."""
    found: dict[str, Tensor] = {}

    def see(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            rows = args[0].flatten(0, -2).float()
            if len(rows):
                found[name] = found.get(name, 0) + rows.T @ rows

        return hook

    with contextlib.ExitStack() as hooks:
        for name in names:
            hooks.enter_context(model.get_submodule(name).register_forward_pre_hook(see(name)))
        for row in ids.reshape(-1, ids.shape[-1]).to(device_of(model)):
            run_model(model, row[None])
    return found


def _reader(floats: nn.Module | str | os.PathLike[str]) -> Callable[[str], Tensor]:
    """Reads a float weight by its name."""
    if isinstance(floats, nn.Module):
        state: Mapping[str, Tensor] = floats.state_dict()
        return lambda name: _found(state, name)
    files = tensor_files(Path(floats))

    def read(name: str) -> Tensor:
        with open_tensors(_found(files, name)) as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    return read


def _found(table: Mapping[str, Any], name: str) -> Any:
    if name not in table:
        raise SparsebitError(
            f"the float model has no tensor {name!r}", expected="the model that was quantized"
        )
    return table[name]


def _set(model: nn.Module, name: str, layer: nn.Module) -> None:
    path, _, last = name.rpartition(".")
    setattr(model.get_submodule(path), last, layer)
