"""Linear layers: the weight is [out, in] and works on the last axis."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.spec import OpCall
from sparsebit.graph.ops.spellings import family


def linear_macs(call: OpCall) -> int:
    """Every row of the input times the whole weight."""
    return math.prod(call.shape("input")[:-1]) * math.prod(call.shape("weight"))


def bilinear_macs(call: OpCall) -> int:
    """First input by weight [out, in1, in2], then the result [..., out, in2] by the second input."""
    rows, (out, _, second) = math.prod(call.shape("input1")[:-1]), call.shape("weight")
    return rows * (math.prod(call.shape("weight")) + out * second)


_layer = family("linear", weight="weight", bias="bias", weight_axes=(0, 1), channel_axis=-1)

OPS = (
    _layer(
        "linear",
        "input, weight, bias=None",
        *(nn.Linear, "aten::mkldnn_linear"),
        channels="linear",
        with_weight=lambda module, weight, x: F.linear(x, weight, module.bias),
        macs=linear_macs,
    ),
    _layer(
        "bilinear",
        "input1, input2, weight, bias=None",
        nn.Bilinear,
        activations=("input1", "input2"),
        macs=bilinear_macs,
    ),
)
