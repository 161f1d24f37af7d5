"""Linear layers: the weight is [out, in] and works on the last axis."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.spec import OpCall, OpSpec
from sparsebit.graph.ops.spellings import named


def linear_macs(call: OpCall) -> int:
    """Every row of the input times the whole weight."""
    return math.prod(call.shape("input")[:-1]) * math.prod(call.shape("weight"))


def bilinear_macs(call: OpCall) -> int:
    """First input by weight [out, in1, in2], then the result [..., out, in2] by the second input."""
    rows, (out, _, second) = math.prod(call.shape("input1")[:-1]), call.shape("weight")
    return rows * (math.prod(call.shape("weight")) + out * second)


OPS = (
    OpSpec(
        name="linear",
        targets=named("linear", nn.Linear, "aten::mkldnn_linear"),
        family="linear",
        signature="input, weight, bias=None",
        weight="weight",
        bias="bias",
        weight_axes=(0, 1),
        channel_axis=-1,
        channels="linear",
        with_weight=lambda module, weight, x: F.linear(x, weight, module.bias),
        macs=linear_macs,
    ),
    OpSpec(
        name="bilinear",
        targets=named("bilinear", nn.Bilinear),
        family="linear",
        signature="input1, input2, weight, bias=None",
        activations=("input1", "input2"),
        weight="weight",
        bias="bias",
        weight_axes=(0, 1),
        channel_axis=-1,
        macs=bilinear_macs,
    ),
)
