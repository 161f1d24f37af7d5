"""Convolutions. The weight is [out, in / groups, ...], for transposed ones [in, out / groups, ...]."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall, OpSpec
from sparsebit.graph.ops.spellings import family


def conv_macs(call: OpCall) -> int:
    """Every output position uses the complete weight once (with groups, the part of its group)."""
    return _positions(call, call.output_shape) * math.prod(call.shape("weight"))


def conv_transpose_macs(call: OpCall) -> int:
    """Every input position is multiplied by the complete weight."""
    return _positions(call, call.shape("input")) * math.prod(call.shape("weight"))


def _positions(call: OpCall, shape: tuple[int, ...]) -> int:
    """Positions in a tensor [batch, channels, ...], which may come without the batch."""
    spatial = len(call.shape("weight")) - 2
    return math.prod(shape[: -spatial - 1]) * math.prod(shape[-spatial:])


def conv_tbc_macs(call: OpCall) -> int:
    """Positions (time, batch) times the weight [kernel, in, out]."""
    return math.prod(call.output_shape[:-1]) * math.prod(call.shape("weight"))


def _pick_convolution(node: Node) -> str:
    """aten::convolution(input, weight, bias, stride, padding, dilation, transposed, ...) -> the named one."""
    stride = node.args[3] if len(node.args) > 3 else node.kwargs["stride"]
    transposed = node.args[6] if len(node.args) > 6 else node.kwargs["transposed"]
    assert isinstance(stride, (tuple, list))
    return f"conv{'_transpose' if transposed else ''}{len(stride)}d"


def conv_with_weight(module: Any, weight: Tensor, x: Tensor) -> Tensor:
    """A convolution module with another weight; its padding mode is respected."""
    result: Tensor = module._conv_forward(x, weight, module.bias)
    return result


def conv_transpose_with_weight(
    module: Any, weight: Tensor, x: Tensor, output_size: list[int] | None = None
) -> Tensor:
    """A transposed convolution module with another weight."""
    dims = weight.dim() - 2
    padding = module._output_padding(
        x, output_size, module.stride, module.padding, module.kernel_size, dims, module.dilation
    )
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    return function(
        x, weight, module.bias, module.stride, module.padding, padding, module.groups, module.dilation
    )


def _pair(dims: int) -> tuple[OpSpec, OpSpec]:
    """The convolution over some dimensions, and the transposed one."""
    general = (torch.convolution, torch._convolution, "aten::convolution", "aten::_convolution")
    order = "input, weight, bias, stride, padding, dilation, transposed, output_padding, groups"
    row = family(
        "conv",
        orders={torch.convolution: order, torch._convolution: order},
        weight="weight",
        bias="bias",
        channel_axis=-1 - dims,
        spatial=dims,
        channels="convolution",
        sizes="groups",
    )
    plain = row(
        f"conv{dims}d",
        "input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, padding_mode='zeros'",
        getattr(nn, f"Conv{dims}d"),
        overloads=dict.fromkeys(general if dims == 2 else (), _pick_convolution),
        weight_axes=(0, 1),
        with_weight=conv_with_weight,
        macs=conv_macs,
    )
    transposed = row(
        f"conv_transpose{dims}d",
        "input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, output_size=None",
        getattr(nn, f"ConvTranspose{dims}d"),
        weight_axes=(1, 0),
        with_weight=conv_transpose_with_weight,
        macs=conv_transpose_macs,
    )
    return plain, transposed


OPS = (
    *_pair(1),
    *_pair(2),
    *_pair(3),
    family("conv")(
        "conv_tbc",
        "input, weight, bias, pad=0",
        weight="weight",
        bias="bias",
        weight_axes=(2, 1),
        channel_axis=-1,
        macs=conv_tbc_macs,
    ),
)
