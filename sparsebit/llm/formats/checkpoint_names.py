"""The names under which the checkpoints of a family store its matrices.

A module of transformers may use other names (``mlp`` for Mixtral's ``block_sparse_moe``) or hold the matrices of all
experts in one stack. Loaders of quantized folders expect the names of checkpoints, with one layer for each expert.
transformers has rules for both directions; they are applied here to the numbers of rows in place of the weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparsebit.llm.formats.format import FormatRefusal, float_state, layers_of
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.packed.linear import PackedLinear
from sparsebit.llm.weights.uses import Matrix
from sparsebit.numerics.packed import PackedTensor


class StoredLayer(NamedTuple):
    """A packed matrix as a checkpoint stores it."""

    name: str  # without ".weight"
    held: PackedTensor
    source: str  # the layer of the model that its rows come from

    @property
    def is_expert(self) -> bool:
        """Whether the model holds it in a stack."""
        return "[" in self.source


def stored_layers(model: LanguageModel) -> Iterator[StoredLayer]:
    """Every packed matrix under its name in checkpoints, except those stored in one tensor with others."""
    layers = dict(layers_of(model))
    if not layers:
        return
    ends = torch.tensor([held.shape[0] for held in layers.values()]).cumsum(0)
    parts = zip(layers, torch.arange(int(ends[-1])).tensor_split(ends[:-1]), strict=True)
    stacks: dict[str, list[Tensor]] = {}
    # Experts are listed in the order in which tokens reached them.
    for layer, rows in sorted(parts, key=lambda part: Matrix.parse(part[0], transposed=False).expert or 0):
        name, bracket, _ = layer.partition("[")
        # Two columns, because transformers drops axes of one element.
        stacks.setdefault(name if bracket else f"{name}.weight", []).append(rows[:, None].expand(-1, 2))
    numbers = {
        name: torch.stack(rows) if f"{name}[0]" in layers else rows[0] for name, rows in stacks.items()
    }
    names, held = list(layers), list(layers.values())
    for name, stored in as_stored(model.model, numbers).items():
        if stored.dim() != 2 or stored.shape[1] != 2:
            continue
        sources = torch.searchsorted(ends, stored[:, 0].contiguous(), right=True)
        first = int(sources[0])
        if (sources == first).all():
            rows = stored[:, 0] - (ends[first] - held[first].shape[0])
            yield StoredLayer(name.removesuffix(".weight"), _rows_of(held[first], rows), names[first])


def refuse_unsplit(model: LanguageModel) -> Iterator[FormatRefusal]:
    """Layers without a name of their own: checkpoints store them in one tensor with others, or once for several."""
    for name in getattr(model.model, "all_tied_weights_keys", None) or ():
        if name in model.weights and isinstance(
            model.model.get_submodule(name.rpartition(".")[0]), PackedLinear
        ):
            reason = (
                "checkpoints of this family store it once for several layers, which packed ones cannot share"
            )
            yield FormatRefusal(name.removesuffix(".weight"), reason, "IGNORE: all of these layers")
    stored = {layer.source for layer in stored_layers(model)}
    for name, _ in layers_of(model):
        if name not in stored:
            stack, bracket, _ = name.partition("[")
            layer = stack.rpartition(".")[0] if bracket else name
            others = "all experts" if bracket else "it and other layers"
            reason = (
                f"checkpoints of this family store {others} in one tensor, and only linear layers are packed"
            )
            yield FormatRefusal(name, reason, f"'*.{layer.rpartition('.')[2]}' in IGNORE")


def float_stacks(model: LanguageModel) -> dict[str, Tensor]:
    """Float experts that checkpoints store one by one, and filters that they store in parts."""
    tensors = float_state(model.model)
    return {
        name: one
        for name, one in tensors.items()
        if one.dim() == 3 and len(as_stored(model.model, {name: one})) > 1
    }


def joined_floats(model: LanguageModel) -> list[str]:
    """Float matrices that checkpoints store in one tensor with others."""
    sizes = {name: len(one) for name, one in float_state(model.model).items() if one.dim() == 2}
    if not sizes:
        return []
    ends = torch.tensor(list(sizes.values())).cumsum(0)
    parts = zip(sizes, torch.arange(int(ends[-1])).tensor_split(ends[:-1]), strict=True)
    stored = as_stored(model.model, {name: rows[:, None].expand(-1, 2) for name, rows in parts})
    found = []
    for rows in stored.values():
        if rows.dim() == 2 and rows.shape[1] == 2:
            sources = torch.searchsorted(ends, rows[:, 0].contiguous(), right=True).unique()
            found += [list(sizes)[source] for source in sources.tolist()] if len(sources) > 1 else []
    return found


def as_stored(model: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a transformers model as its checkpoints name and split them."""
    from transformers.core_model_loading import revert_weight_conversion

    found: dict[str, Tensor] = revert_weight_conversion(model, tensors)
    return found


def _rows_of(held: PackedTensor, rows: Tensor) -> PackedTensor:
    count = held.shape[0]
    if torch.equal(rows, torch.arange(count)):
        return held
    grid = held.grid
    scale, zero_point = (one.reshape(count, -1)[rows].flatten() for one in (grid.scale, grid.zero_point))
    return replace(
        held,
        bits=held.bits[rows],
        grid=replace(grid, scale=scale, zero_point=zero_point),
        shape=(len(rows), held.shape[1]),
    )
