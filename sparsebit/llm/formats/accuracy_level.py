"""The ``accuracy_level`` of each ``MatMulNBits``: 8-bit activations where they cost little accuracy, float elsewhere.

Level 4 rounds activations to 8 bits, which makes a product several times faster. Its cost is the divergence of the
next-token distributions in torch with the same rounding. If all products together stay within the budget, all get level
4. Otherwise each is measured alone, and the most expensive are computed in float until the measured rest is within the
budget.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from sparsebit.batches import device_of
from sparsebit.llm.engines.rounding import Rounding, rounded_inputs
from sparsebit.llm.evaluate.perplexity import divergence, log_probabilities
from sparsebit.llm.formats.format import holder_of
from sparsebit.llm.formats.matmul_nbits import block_size
from sparsebit.numerics.packed import PackedTensor

logger = logging.getLogger(__name__)

IN_8_BITS, IN_FLOAT = 4, 0


class Levels(NamedTuple):
    """The level of each layer, and the total cost of the layers at level 4, in nats."""

    by_layer: dict[str, int]
    cost: float


def choose_levels(
    model: nn.Module, weights: Mapping[str, PackedTensor], ids: Tensor, budget: float
) -> Levels:
    """Levels whose measured cost on ``ids`` is at most ``budget``; without one, all are in float."""
    products = group_products(model, weights)
    if not budget:  # nothing to measure
        return Levels({name: IN_FLOAT for names in products for name in names}, 0.0)
    ids = ids.to(device_of(model))
    wanted = _predict(model, ids, {})

    def cost(chosen: Sequence[int]) -> float:
        rounded = {
            name: Rounding(block_size(weights[f"{name}.weight"]), torch.float32)
            for index in chosen
            for name in products[index]
        }
        return divergence(wanted, _predict(model, ids, rounded))

    kept = list(range(len(products)))
    spent = cost(kept)
    if not spent <= budget:  # a cost that is no number is too much
        alone = [cost([index]) for index in kept]
        kept.sort(key=alone.__getitem__)
        while not spent <= budget and kept:
            total, largest = 0.0, len(kept)
            # Errors of different products are nearly independent, so their costs add up. The sum predicts how many
            # products may stay, and the next measurement verifies it.
            for place, index in enumerate(kept):
                total += alone[index] * max(spent / max(sum(alone[one] for one in kept), 1e-12), 1.0)
                if total > budget:
                    largest = place
                    break
            kept = kept[: min(largest, len(kept) - 1)]
            spent = cost(kept) if kept else 0.0
    chosen = {name for index in kept for name in products[index]}
    levels = {name: IN_8_BITS if name in chosen else IN_FLOAT for names in products for name in names}
    if in_float := [name for name, level in levels.items() if level == IN_FLOAT]:
        logger.warning(
            "%d of %d layers are computed in float, because 8-bit activations cost more than %g nats: %s%s",
            len(in_float), len(levels), budget, ", ".join(in_float[:3]), " ..." if len(in_float) > 3 else "",
        )  # fmt: skip
    return Levels(levels, spent)


def group_products(model: nn.Module, weights: Mapping[str, PackedTensor]) -> list[list[str]]:
    """Layers that form one product in the file: query, key and value together, every other layer alone.

    Embeddings are left out: their rows are looked up. So are stacked experts, whose inputs cannot be measured alone.
    """
    found: dict[str, list[str]] = {}
    for name in (one.removesuffix(".weight") for one in weights):
        path, _, last = name.rpartition(".")
        if holder_of(model, name) in ("linear", "conv1d"):
            key = f"{path}.qkv" if last in ("q_proj", "k_proj", "v_proj") else name
            found.setdefault(key, []).append(name)
    return list(found.values())


@torch.no_grad()
def _predict(model: nn.Module, ids: Tensor, rounded: Mapping[str, Rounding]) -> Tensor:
    with rounded_inputs(model, rounded):
        return log_probabilities(model, ids[None])[0].double()
