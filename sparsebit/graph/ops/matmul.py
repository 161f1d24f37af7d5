"""Linear layers, and products of two activations or of an activation and a parameter, which is then the weight."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.estimate import estimate_macs
from sparsebit.graph.ops.spec import OpCall, shape_of
from sparsebit.graph.ops.spellings import family, present


def linear_macs(call: OpCall) -> int:
    """Every row of the input times the whole weight."""
    return math.prod(call.shape("input")[:-1]) * math.prod(call.shape("weight"))


def bilinear_macs(call: OpCall) -> int:
    """First input by weight [out, in1, in2], then the result [..., out, in2] by the second input."""
    rows, (out, _, second) = math.prod(call.shape("input1")[:-1]), call.shape("weight")
    return rows * (math.prod(call.shape("weight")) + out * second)


def matmul_macs(call: OpCall) -> int:
    """Result elements times the last axis of the left operand: the contracted length, or the coordinates of a row."""
    return math.prod(call.output_shape) * call.shape("input")[-1]


def addmm_macs(call: OpCall) -> int:
    """Those of the product; the addition is free."""
    left, right = call.shape(call.spec.activations[-2]), call.shape(call.spec.activations[-1])
    return math.prod(left) * (right[-1] if len(right) > 1 else 1)


def vecdot_macs(call: OpCall) -> int:
    """One multiply-accumulate per pair of elements."""
    return math.prod(torch.broadcast_shapes(call.shape("input"), call.shape("other")))


def grouped_mm_macs(call: OpCall) -> int:
    """Each row meets the matrix of its own group, [rows, k] x [groups, k, n], so the groups do not matter."""
    left, right = call.shape("input"), call.shape("other")
    return math.prod(left) * right[-1]


def tensordot_macs(call: OpCall) -> int:
    """Result elements times the contracted extents."""
    left, right, out = (math.prod(s) for s in (call.shape("input"), call.shape("other"), call.output_shape))
    # every free extent is in the result and one operand, contracted ones in both
    return math.isqrt(left * right * out)


def chain_macs(call: OpCall) -> int:
    """The cheapest order of a chain of matrices, which is the one torch picks."""
    shapes = [shape_of(call.owner, node) for node in call.activations]
    sizes = [shapes[0][0] if len(shapes[0]) > 1 else 1, *(s[0] for s in shapes[1:]), shapes[-1][-1]]
    if len(shapes[-1]) == 1:
        sizes[-1] = 1
    count = len(sizes) - 1
    best = [[0] * count for _ in range(count)]
    for span in range(1, count):
        for i in range(count - span):
            j = i + span
            best[i][j] = min(
                best[i][k] + best[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1] for k in range(i, j)
            )
    return best[0][count - 1]


def einsum_macs(call: OpCall) -> int:
    """Sum over pairwise contractions from left to right, as ``torch.einsum`` does without opt_einsum.

    A step in which nothing is summed over is an element-wise or outer product and counts nothing.
    """
    equation = call.arguments["equation"]
    if not isinstance(equation, str):  # the form with lists of indices
        return estimate_macs(call.owner, call.node)
    return count_einsum(equation, [shape_of(call.owner, node) for node in call.activations])


def count_einsum(equation: str, shapes: Sequence[tuple[int, ...]]) -> int:
    """Multiply-accumulates of an einsum over operands of these shapes.

    Example:
        >>> count_einsum("bik,bkj->bij", [(2, 3, 4), (2, 4, 5)])
        120
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    operands = [
        _expand_ellipsis(term, len(shape)) for term, shape in zip(left.split(","), shapes, strict=True)
    ]
    sizes: dict[str, int] = {}
    for term, shape in zip(operands, shapes, strict=True):
        for index, size in zip(term, shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    if arrow:
        widest = max((term for term in operands), key=lambda t: sum(i.startswith(".") for i in t))
        result = {i for i in widest if i.startswith(".")} if "..." in right else set()
        result |= set(right.replace("...", ""))
    else:
        seen = [index for term in operands for index in term]
        result = {index for index in seen if seen.count(index) == 1 or index.startswith(".")}
    total, running = 0, set(operands[0])
    for position, term in enumerate(operands[1:], start=1):
        later = {index for other in operands[position + 1 :] for index in other}
        union, keep = running | set(term), later | result
        # An index that only one side has, and nothing needs any more, is summed before the product.
        union -= {index for index in union - keep if (index in running) != (index in term)}
        if any(index not in keep and sizes[index] > 1 for index in union):
            total += math.prod(sizes[index] for index in union)
        running = union & keep
    return total


def _expand_ellipsis(term: str, rank: int) -> tuple[str, ...]:
    """'...ij' over rank 4 -> ('.1', '.0', 'i', 'j'): numbered from the right, as broadcasting aligns them."""
    if "..." not in term:
        return tuple(term)
    before, after = term.split("...")
    hidden = rank - len(before) - len(after)
    return (*before, *(f".{hidden - 1 - i}" for i in range(hidden)), *after)


_row = family("matmul")
_linear = family(
    "linear", weight="weight", bias="bias", weight_axes=(0, 1), channel_axis=-1
)  # weight [out, in]
_product = family("matmul", activations=("input", "other"))
# With a parameter as the right operand it is a linear layer.
_layer = family("matmul", activations=("input", "other"), channel_axis=-1, placed_as="linear")
_added = family("matmul", macs=addmm_macs)
_BATCHES = "input, batch1, batch2, *, beta=1, alpha=1"

OPS = (
    _linear(
        "linear",
        "input, weight, bias=None",
        *(nn.Linear, "aten::mkldnn_linear"),
        channels="linear",
        with_weight=lambda module, weight, x: F.linear(x, weight, module.bias),
        macs=linear_macs,
    ),
    _linear(
        "bilinear",
        "input1, input2, weight, bias=None",
        nn.Bilinear,
        activations=("input1", "input2"),
        macs=bilinear_macs,
    ),
    _layer(
        "matmul",
        "input, other",
        *("mm", "bmm", "mv", "dot", torch.linalg.matmul, operator.matmul, operator.imatmul),
        *present(torch.Tensor, "__matmul__", "__imatmul__", "__rmatmul__"),
        orders={torch.Tensor.__rmatmul__: "other, input"},
        aliases={"mat2": "other", "vec": "other", "tensor": "other"},
        weight="other",
        weight_axes=(-1, -2),
        channels="matmul",
        macs=matmul_macs,
    ),
    _layer(
        "addmm",
        "input, mat1, mat2, *, beta=1, alpha=1",
        activations=("input", "mat1", "mat2"),
        weight="mat2",
        bias="input",
        weight_axes=(1, 0),
        channels="matmul",
        macs=addmm_macs,
    ),
    _layer(
        "baddbmm",
        _BATCHES,
        activations=("input", "batch1", "batch2"),
        weight="batch2",
        weight_axes=(2, 1),
        channels="matmul",
        macs=addmm_macs,
    ),
    _added("addmv", "input, mat, vec, *, beta=1, alpha=1", activations=("input", "mat", "vec")),
    _added("addbmm", _BATCHES, activations=("input", "batch1", "batch2")),
    _product("inner", "input, other", macs=matmul_macs),
    _product(
        "vecdot",
        "input, other, *, dim=-1",
        only=(torch.linalg.vecdot, "aten::linalg_vecdot"),
        aliases={"y": "other"},
        macs=vecdot_macs,
    ),
    _layer(
        "grouped_mm",
        "input, other, *, offs=None, bias=None, out_dtype=None",
        *(*present(torch, "_grouped_mm"), "aten::_grouped_mm", "transformers::grouped_mm_fallback"),
        aliases={"mat_a": "input", "mat_b": "other", "mat2": "other", "weight": "other"},
        weight="other",
        weight_axes=(-1, -2),
        macs=grouped_mm_macs,
    ),
    _row(
        "einsum",
        "equation, *operands",
        orders={torch.einsum: "equation, *operands"},
        aliases={"tensors": "operands"},
        activations=("operands",),
        channels="einsum",
        view=True,  # "ij->ji" is a transpose
        macs=einsum_macs,
    ),
    _product("tensordot", "input, other, dims=2", aliases={"a": "input", "b": "other"}, macs=tensordot_macs),
    _row(
        "multi_dot",
        "*tensors",
        only=(
            *(*present(torch, "chain_matmul"), torch.linalg.multi_dot),
            *("aten::chain_matmul", "aten::linalg_multi_dot"),
        ),
        aliases={"matrices": "tensors"},
        activations=("tensors",),
        macs=chain_macs,
    ),
    _product("outer", "input, other", "ger", aliases={"vec2": "other"}),
    _product("kron", "input, other"),
    _product(
        "cdist",
        "input, other, p=2.0, compute_mode='use_mm_for_euclid_dist_if_necessary'",
        "aten::_cdist_forward",
        aliases={"x1": "input", "x2": "other"},
        macs=matmul_macs,
    ),
)
