"""Activation functions, and the softmax family."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.spec import bounds_in
from sparsebit.graph.ops.spellings import family

_row = family("activation", elementwise=True)
_zero = family("activation", elementwise=True, keeps_zero=True)
_softmax = family("activation", channels="softmax")
_INPLACE = "input, inplace=False"
_DIM = "input, dim=None, dtype=None"

OPS = (
    _row("relu", _INPLACE, nn.ReLU, bounds=lambda call: (0.0, math.inf), homogeneous=True),
    _row("relu6", _INPLACE, nn.ReLU6, bounds=lambda call: (0.0, 6.0)),
    _zero("leaky_relu", "input, negative_slope=0.01, inplace=False", nn.LeakyReLU, homogeneous=True),
    _zero("elu", "input, alpha=1.0, inplace=False", nn.ELU),
    _zero("selu", _INPLACE, nn.SELU),
    _zero("celu", "input, alpha=1.0, inplace=False", nn.CELU),
    _zero("gelu", "input, approximate='none'", nn.GELU),
    _zero("silu", _INPLACE, nn.SiLU),
    _zero("mish", _INPLACE, nn.Mish),
    _zero("hardswish", _INPLACE, nn.Hardswish),
    _row("hardsigmoid", _INPLACE, nn.Hardsigmoid),
    _row(
        "hardtanh",
        "input, min_val=-1.0, max_val=1.0, inplace=False",
        nn.Hardtanh,
        bounds=bounds_in("min_val", "max_val"),
    ),
    _zero("tanh", "input", nn.Tanh),
    _zero("tanhshrink", "input", nn.Tanhshrink),
    _row("softplus", "input, beta=1.0, threshold=20.0", nn.Softplus),
    _zero("softsign", "input", nn.Softsign),
    _zero("softshrink", "input, lambd=0.5", nn.Softshrink),
    _zero("hardshrink", "input, lambd=0.5", nn.Hardshrink),
    _row("threshold", "input, threshold, value, inplace=False", nn.Threshold),
    _row("sigmoid", "input", "expit", nn.Sigmoid),
    _row("logsigmoid", "input", "log_sigmoid", nn.LogSigmoid, "aten::log_sigmoid_forward"),
    _zero(
        "rrelu",
        "input, lower=0.125, upper=0.3333333333333333, training=False, inplace=False",
        *(nn.RReLU, "aten::rrelu_with_noise"),
        random=True,
    ),
    _zero(
        "prelu",
        "input, weight",
        *(nn.PReLU, "aten::_prelu_kernel"),
        weight="weight",
        channel_axis=1,
        channels="prelu",
        homogeneous=True,
    ),
    _softmax("glu", "input, dim=-1", nn.GLU, channels="glu"),
    _softmax(
        "softmax",
        _DIM,
        *(nn.Softmax, nn.Softmax2d, "aten::_softmax", "aten::_safe_softmax"),
        implied={nn.Softmax2d: {"dim": -3}},
    ),
    _softmax("log_softmax", _DIM, nn.LogSoftmax, "aten::_log_softmax"),
    _softmax("softmin", _DIM, only=(F.softmin, nn.Softmin)),
    _softmax(
        "gumbel_softmax",
        "input, tau=1, hard=False, eps=1e-10, dim=-1",
        only=(F.gumbel_softmax,),
        aliases={"logits": "input"},
        random=True,
    ),
)
