"""Convolutions. The weight is [out, in / groups, ...], for transposed ones [in, out / groups, ...]."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall, OpSpec
from sparsebit.graph.ops.spellings import named

_CONV = "input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1, padding_mode='zeros'"
_TRANSPOSED = (
    "input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1, output_size=None"
)


def conv_macs(call: OpCall) -> int:
    """Every output position uses the whole weight once (of each group, its own share)."""
    spatial = len(call.shape("weight")) - 2
    out = call.output_shape
    batch = math.prod(out[: -spatial - 1])
    return batch * math.prod(out[-spatial:]) * math.prod(call.shape("weight"))


def conv_transpose_macs(call: OpCall) -> int:
    """Every input position is spread by the whole weight."""
    spatial = len(call.shape("weight")) - 2
    shape = call.shape("input")
    batch = math.prod(shape[: -spatial - 1])
    return batch * math.prod(shape[-spatial:]) * math.prod(call.shape("weight"))


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
    """A convolution module with another weight; its padding mode counts."""
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


def _conv(dims: int, module: type[nn.Module]) -> OpSpec:
    general = (
        ("aten::convolution", "aten::_convolution", torch.convolution, torch._convolution)
        if dims == 2
        else ()
    )
    order = "input, weight, bias, stride, padding, dilation, transposed, output_padding, groups"
    return OpSpec(
        name=f"conv{dims}d",
        targets=named(f"conv{dims}d", module),
        family="conv",
        overloads=dict.fromkeys(general, _pick_convolution),
        signature=_CONV,
        orders={torch.convolution: order, torch._convolution: order},
        weight="weight",
        bias="bias",
        weight_axes=(0, 1),
        channel_axis=-1 - dims,
        spatial=dims,
        with_weight=conv_with_weight,
        channels="convolution",
        sizes="groups",
        macs=conv_macs,
    )


def _conv_transpose(dims: int, module: type[nn.Module]) -> OpSpec:
    order = "input, weight, bias, stride, padding, dilation, transposed, output_padding, groups"
    return OpSpec(
        name=f"conv_transpose{dims}d",
        targets=named(f"conv_transpose{dims}d", module),
        family="conv",
        signature=_TRANSPOSED,
        orders={torch.convolution: order, torch._convolution: order},
        weight="weight",
        bias="bias",
        weight_axes=(1, 0),
        channel_axis=-1 - dims,
        spatial=dims,
        with_weight=conv_transpose_with_weight,
        channels="convolution",
        sizes="groups",
        macs=conv_transpose_macs,
    )


OPS = (
    _conv(1, nn.Conv1d),
    _conv(2, nn.Conv2d),
    _conv(3, nn.Conv3d),
    _conv_transpose(1, nn.ConvTranspose1d),
    _conv_transpose(2, nn.ConvTranspose2d),
    _conv_transpose(3, nn.ConvTranspose3d),
    OpSpec(
        name="conv_tbc",
        targets=named("conv_tbc"),
        family="conv",
        signature="input, weight, bias, pad=0",
        weight="weight",
        bias="bias",
        weight_axes=(2, 1),
        channel_axis=-1,
        macs=conv_tbc_macs,
    ),
)
