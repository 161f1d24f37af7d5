"""Linear layers, and products of two activations or of an activation and a parameter, which is then the weight."""

from __future__ import annotations

import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.estimate import count_by_running
from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.ops.spellings import family, present


def linear_macs(call: OpCall) -> int:
    """Every row of the input times the complete weight."""
    return math.prod(call.shape("input")[:-1]) * math.prod(call.shape("weight"))


def bilinear_macs(call: OpCall) -> int:
    """First input by weight [out, in1, in2], then the result [..., out, in2] by the second input."""
    rows, (out, _, second) = math.prod(call.shape("input1")[:-1]), call.shape("weight")
    return rows * (math.prod(call.shape("weight")) + out * second)


def matmul_macs(call: OpCall) -> int:
    """Result elements times the last axis of the left operand: the contracted length, or the coordinates of a row."""
    return math.prod(call.output_shape) * call.shape("input")[-1]


def addmm_macs(call: OpCall) -> int:
    """Those of the product; the addition is not counted."""
    left, right = call.shape(call.spec.activations[-2]), call.shape(call.spec.activations[-1])
    return math.prod(left) * (right[-1] if len(right) > 1 else 1)


def vecdot_macs(call: OpCall) -> int:
    """One multiply-accumulate per pair of elements."""
    return math.prod(torch.broadcast_shapes(call.shape("input"), call.shape("other")))


def grouped_mm_macs(call: OpCall) -> int:
    """Each row meets the matrix of its own group, [rows, k] x [groups, k, n], so the groups do not matter."""
    left, right = call.shape("input"), call.shape("other")
    return math.prod(left) * right[-1]


_row = family("matmul")
# The weight is [out, in].
_linear = family("linear", weight="weight", bias="bias", weight_axes=(0, 1), channel_axis=-1)
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
        channels="grouped_mm",
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
        macs=count_by_running,
    ),
    _product(
        "tensordot", "input, other, dims=2", aliases={"a": "input", "b": "other"}, macs=count_by_running
    ),
    _row(
        "multi_dot",
        "*tensors",
        only=(
            *(*present(torch, "chain_matmul"), torch.linalg.multi_dot),
            *("aten::chain_matmul", "aten::linalg_multi_dot"),
        ),
        aliases={"matrices": "tensors"},
        activations=("tensors",),
        macs=count_by_running,
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
