"""Experts in the layout of ONNX Runtime's ``QMoE``: one stack of packed matrices for gate and up, and one for down.

Rows of gate and up alternate. Only chosen experts are computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsebit.llm.decoder.parts import Experts, Matrix
from sparsebit.llm.formats.matmul_nbits import block_kind, block_weight, with_rows
from sparsebit.numerics.packed import PackedTensor

BITS = 4  # with 2 and 8 bits the operator rounds activations at any accuracy level


class Stack(NamedTuple):
    """The matrices of all experts."""

    name: str  # of the stacked parameter
    values: Tensor  # uint8 [experts, out, bytes of a row]
    scales: Tensor  # float32 [experts, out, blocks]
    zero_points: Tensor | None  # uint8 [experts, out, bytes]


class StackedExperts(NamedTuple):
    """Both stacks, on grids of one kind."""

    gate_and_up: Stack
    down: Stack
    block_size: int


def stack_experts(experts: Experts, weights: Mapping[str, PackedTensor]) -> StackedExperts | None:
    """The experts for one operator; None for other widths, mixed grids, float, or anything but a SiLU gate."""
    each = experts.experts
    matrices = [matrix for one in each for matrix in (*one.inputs, one.down)]
    held = [weights.get(matrix.name) for matrix in matrices]
    kinds = {None if one is None else block_kind(one) for one in held}
    is_swiglu = all(one.gated and one.activation == "silu" and len(one.inputs) == 1 for one in each)
    kind = kinds.pop()
    if kinds or kind is None or kind[0] != BITS or not is_swiglu:
        return None
    rows = each[0].inputs[0].shape[0]
    pairs = torch.arange(rows).view(2, -1).T.flatten()
    return StackedExperts(
        _stack([one.inputs[0] for one in each], weights, pairs),
        _stack([one.down for one in each], weights, None),
        block_size=kind[1],
    )


def _stack(matrices: Sequence[Matrix], weights: Mapping[str, PackedTensor], order: Tensor | None) -> Stack:
    made = [block_weight(weights[matrix.name]) for matrix in matrices]
    made = made if order is None else [with_rows(one, order) for one in made]
    points = [one.zero_points for one in made if one.zero_points is not None]
    return Stack(
        matrices[0].name.partition("[")[0],
        torch.stack([one.values.flatten(1) for one in made]),
        torch.stack([one.scales for one in made]),
        torch.stack(points) if points else None,
    )
