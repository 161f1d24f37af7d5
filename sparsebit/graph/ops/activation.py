"""Activation functions, and the softmax family."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.spec import Bounds, OpSpec, bounds_in
from sparsebit.graph.ops.spellings import named


def _pointwise(
    name: str,
    module: type[nn.Module],
    signature: str = "input, inplace=False",
    *,
    bounds: Bounds | None = None,
    keeps_zero: bool = True,
    homogeneous: bool = False,
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, module),
        family="activation",
        signature=signature,
        elementwise=True,
        bounds=bounds,
        keeps_zero=keeps_zero and bounds is None,
        homogeneous=homogeneous,
    )


OPS = (
    _pointwise("relu", nn.ReLU, bounds=lambda call: (0.0, math.inf), homogeneous=True),
    _pointwise("relu6", nn.ReLU6, bounds=lambda call: (0.0, 6.0)),
    _pointwise("leaky_relu", nn.LeakyReLU, "input, negative_slope=0.01, inplace=False", homogeneous=True),
    _pointwise("elu", nn.ELU, "input, alpha=1.0, inplace=False"),
    _pointwise("selu", nn.SELU),
    _pointwise("celu", nn.CELU, "input, alpha=1.0, inplace=False"),
    _pointwise("gelu", nn.GELU, "input, approximate='none'"),
    _pointwise("silu", nn.SiLU),
    _pointwise("mish", nn.Mish),
    _pointwise("hardswish", nn.Hardswish),
    _pointwise("hardsigmoid", nn.Hardsigmoid, keeps_zero=False),
    _pointwise(
        "hardtanh",
        nn.Hardtanh,
        "input, min_val=-1.0, max_val=1.0, inplace=False",
        bounds=bounds_in("min_val", "max_val"),
    ),
    _pointwise("tanh", nn.Tanh, "input"),
    _pointwise("tanhshrink", nn.Tanhshrink, "input"),
    _pointwise("softplus", nn.Softplus, "input, beta=1.0, threshold=20.0", keeps_zero=False),
    _pointwise("softsign", nn.Softsign, "input"),
    _pointwise("softshrink", nn.Softshrink, "input, lambd=0.5"),
    _pointwise("hardshrink", nn.Hardshrink, "input, lambd=0.5"),
    _pointwise("threshold", nn.Threshold, "input, threshold, value, inplace=False", keeps_zero=False),
    OpSpec(
        name="sigmoid",
        targets=named("sigmoid", "expit", nn.Sigmoid),
        family="activation",
        elementwise=True,
    ),
    OpSpec(
        name="logsigmoid",
        targets=named("logsigmoid", "log_sigmoid", nn.LogSigmoid, "aten::log_sigmoid_forward"),
        family="activation",
        elementwise=True,
    ),
    OpSpec(
        name="rrelu",
        targets=named("rrelu", nn.RReLU, "aten::rrelu_with_noise"),
        family="activation",
        signature="input, lower=0.125, upper=0.3333333333333333, training=False, inplace=False",
        elementwise=True,
        keeps_zero=True,
        random=True,
    ),
    OpSpec(
        name="prelu",
        targets=named("prelu", nn.PReLU, "aten::_prelu_kernel"),
        family="activation",
        signature="input, weight",
        weight="weight",
        channel_axis=1,
        channels="prelu",
        elementwise=True,
        keeps_zero=True,
        homogeneous=True,
    ),
    OpSpec(
        name="glu",
        targets=named("glu", nn.GLU),
        family="activation",
        signature="input, dim=-1",
        channels="glu",
    ),
    OpSpec(
        name="softmax",
        targets=named("softmax", nn.Softmax, nn.Softmax2d, "aten::_softmax", "aten::_safe_softmax"),
        family="activation",
        signature="input, dim=None, dtype=None",
        implied={nn.Softmax2d: {"dim": -3}},
        channels="softmax",
    ),
    OpSpec(
        name="log_softmax",
        targets=named("log_softmax", nn.LogSoftmax, "aten::_log_softmax"),
        family="activation",
        signature="input, dim=None, dtype=None",
        channels="softmax",
    ),
    OpSpec(
        name="softmin",
        targets=(F.softmin, nn.Softmin),
        family="activation",
        signature="input, dim=None, dtype=None",
        channels="softmax",
    ),
    OpSpec(
        name="gumbel_softmax",
        targets=(F.gumbel_softmax,),
        family="activation",
        signature="input, tau=1, hard=False, eps=1e-10, dim=-1",
        aliases={"logits": "input"},
        channels="softmax",
        random=True,
    ),
)
