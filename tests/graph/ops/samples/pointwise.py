"""Samples of activations, element-wise arithmetic, comparisons, casts and dropout."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import nn

from tests.graph.ops.sampling import Sample, boolean, integer, positive, real, sample

_SHAPE = (2, 4, 3)


class TinyDropPath(nn.Module):
    """Drops whole samples while training, as the stochastic depth of any vision model does."""

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Keep or drop each sample."""
        if not self.training:
            return hidden
        return hidden * (torch.rand(hidden.shape[0], *[1] * (hidden.ndim - 1)) > self.drop_prob)


def _activation(module: nn.Module, function: object | None = None, *args: object) -> tuple[Sample, ...]:
    cases = [sample(module, real(*_SHAPE))]
    if function is not None:
        assert callable(function)
        cases.append(sample(function, real(*_SHAPE), *args))
    return tuple(cases)


def _unary(*names: str) -> dict[str, tuple[Sample, ...]]:
    return {name: (sample(getattr(torch, name), positive(*_SHAPE)),) for name in names}


def _binary(*names: str) -> dict[str, tuple[Sample, ...]]:
    """Equal shapes, and one operand broadcast."""
    return {
        name: (
            sample(getattr(torch, name), positive(*_SHAPE), positive(*_SHAPE)),
            sample(getattr(torch, name), positive(*_SHAPE), positive(4, 1)),
        )
        for name in names
    }


def _integers(*names: str) -> dict[str, tuple[Sample, ...]]:
    return {name: (sample(getattr(torch, name), integer(*_SHAPE), integer(*_SHAPE)),) for name in names}


_ACTIVATIONS: dict[str, tuple[Sample, ...]] = {
    "relu": (*_activation(nn.ReLU(), F.relu), sample(torch.relu, real(*_SHAPE))),
    "relu6": _activation(nn.ReLU6(), F.relu6),
    "leaky_relu": _activation(nn.LeakyReLU(0.2), F.leaky_relu, 0.2),
    "elu": _activation(nn.ELU(), F.elu),
    "selu": _activation(nn.SELU(), F.selu),
    "celu": _activation(nn.CELU(), F.celu),
    "gelu": _activation(nn.GELU(approximate="tanh"), F.gelu),
    "silu": _activation(nn.SiLU(), F.silu),
    "mish": _activation(nn.Mish(), F.mish),
    "hardswish": _activation(nn.Hardswish(), F.hardswish),
    "hardsigmoid": _activation(nn.Hardsigmoid(), F.hardsigmoid),
    "hardtanh": _activation(nn.Hardtanh(), F.hardtanh, -2.0, 2.0),
    "tanh": _activation(nn.Tanh(), torch.tanh),
    "tanhshrink": _activation(nn.Tanhshrink(), F.tanhshrink),
    "softplus": _activation(nn.Softplus(), F.softplus),
    "softsign": _activation(nn.Softsign(), F.softsign),
    "softshrink": _activation(nn.Softshrink(), F.softshrink),
    "hardshrink": _activation(nn.Hardshrink(), F.hardshrink),
    "threshold": _activation(nn.Threshold(0.1, -1.0), F.threshold, 0.1, -1.0),
    "sigmoid": _activation(nn.Sigmoid(), torch.sigmoid),
    "logsigmoid": _activation(nn.LogSigmoid(), F.logsigmoid),
    "rrelu": _activation(nn.RReLU(), F.rrelu),
    "prelu": (sample(nn.PReLU(4), real(*_SHAPE)), sample(F.prelu, real(*_SHAPE), nn.Parameter(positive(4)))),
    "glu": _activation(nn.GLU(dim=1), F.glu, 1),
    "softmax": (
        sample(nn.Softmax(dim=1), real(*_SHAPE)),
        sample(F.softmax, real(*_SHAPE), dim=-1),
        sample(nn.Softmax2d(), real(2, 4, 3, 3)),
    ),
    "log_softmax": _activation(nn.LogSoftmax(dim=1), torch.log_softmax, -1),
    "softmin": _activation(nn.Softmin(dim=1)),
    "gumbel_softmax": (sample(F.gumbel_softmax, real(*_SHAPE), dim=1),),
}

_ARITHMETIC: dict[str, tuple[Sample, ...]] = {
    "add": (
        sample(operator.add, real(*_SHAPE), real(4, 1)),
        sample(torch.add, real(*_SHAPE), real(*_SHAPE), alpha=2),
        sample(operator.add, real(*_SHAPE), 1.0),
    ),
    "sub": (
        sample(operator.sub, real(*_SHAPE), real(4, 1)),
        sample(torch.rsub, real(*_SHAPE), real(*_SHAPE)),
        sample(operator.sub, 1.0, real(*_SHAPE)),
    ),
    "mul": (sample(operator.mul, real(*_SHAPE), real(4, 1)), sample(torch.mul, real(*_SHAPE), 2.0)),
    "div": (
        sample(operator.truediv, real(*_SHAPE), positive(4, 1)),
        sample(torch.div, real(*_SHAPE), positive(*_SHAPE), rounding_mode="floor"),
    ),
    "floor_divide": (
        sample(operator.floordiv, real(*_SHAPE), positive(4, 1)),
        sample(torch.floor_divide, real(*_SHAPE), 0.3),
    ),
    "remainder": (sample(operator.mod, real(*_SHAPE), positive(4, 1)),),
    "pow": (sample(operator.pow, positive(*_SHAPE), 2), sample(torch.pow, positive(*_SHAPE), real(4, 1))),
    **_binary(
        *("fmod", "float_power", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "copysign", "ldexp"),
        *("logaddexp", "logaddexp2", "xlogy", "heaviside", "complex", "polar"),
    ),
    **_integers("gcd", "lcm"),
    "where": (
        sample(torch.where, boolean(*_SHAPE), real(*_SHAPE), real(4, 1)),
        sample(torch.where, boolean(*_SHAPE), real(*_SHAPE), 0.0),
    ),
    "addcmul": (sample(torch.addcmul, real(*_SHAPE), real(*_SHAPE), real(4, 1), value=0.5),),
    "addcdiv": (sample(torch.addcdiv, real(*_SHAPE), real(*_SHAPE), positive(4, 1)),),
    "lerp": (sample(torch.lerp, real(*_SHAPE), real(*_SHAPE), positive(*_SHAPE)),),
    "masked_fill": (sample(torch.masked_fill, real(*_SHAPE), boolean(4, 3), -1.0),),
    "copy": (sample(torch.Tensor.copy_, real(*_SHAPE), real(4, 1)),),
    "clamp": (sample(torch.clamp, real(*_SHAPE), -0.5, 0.5), sample(torch.clip, real(*_SHAPE), max=0.2)),
    "clamp_min": (sample(torch.clamp_min, real(*_SHAPE), 0.1),),
    "clamp_max": (sample(torch.clamp_max, real(*_SHAPE), 0.1),),
    "fill": (sample(torch.fill, real(*_SHAPE), 2.0),),
    "zero": (sample(torch.zero_, real(*_SHAPE)),),
    "neg": (sample(operator.neg, real(*_SHAPE)),),
    "abs": (sample(torch.abs, real(*_SHAPE)),),
    "acosh": (sample(torch.acosh, positive(*_SHAPE) + 1),),
    "round": (sample(torch.round, real(*_SHAPE) * 3), sample(torch.round, real(*_SHAPE), decimals=1)),
    **_unary(
        *(
            "positive",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sqrt",
            "rsqrt",
            "square",
            "reciprocal",
        ),
        *(
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "asinh",
            "atanh",
            "sinc",
            "erf",
            "erfc",
            "erfinv",
        ),
        *(
            "lgamma",
            "digamma",
            "i0",
            "logit",
            "floor",
            "ceil",
            "trunc",
            "frac",
            "sign",
            "sgn",
            "angle",
            "deg2rad",
        ),
        *("rad2deg", "nan_to_num"),
    ),
    "bucketize": (
        sample(torch.bucketize, real(*_SHAPE), torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)),
    ),
}

_COMPARISONS: dict[str, tuple[Sample, ...]] = {
    **_binary("eq", "ne", "lt", "le", "gt", "ge", "isclose"),
    **_integers("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "bitwise_right_shift"),
    **{
        name: (sample(getattr(torch, name), boolean(*_SHAPE), boolean(4, 1)),)
        for name in ("logical_and", "logical_or", "logical_xor")
    },
    "bitwise_not": (sample(operator.invert, boolean(*_SHAPE)),),
    "logical_not": (sample(torch.logical_not, boolean(*_SHAPE)),),
    **_unary("isnan", "isinf", "isposinf", "isneginf", "isfinite", "signbit"),
    "isin": (sample(torch.isin, integer(*_SHAPE), torch.tensor([2, 3])),),
    "allclose": (sample(torch.allclose, real(*_SHAPE), real(*_SHAPE)),),
    "equal": (sample(torch.equal, real(*_SHAPE), real(*_SHAPE)),),
}

_CASTS: dict[str, tuple[Sample, ...]] = {
    "to": (
        sample(torch.Tensor.to, real(*_SHAPE), torch.float32),
        sample(torch.Tensor.to, real(*_SHAPE), "cpu"),
        sample(torch.Tensor.half, real(*_SHAPE)),
        sample(torch.Tensor.double, real(*_SHAPE)),
    ),
    "type_as": (
        sample(torch.Tensor.type_as, real(*_SHAPE), real(1)),
        sample(torch.Tensor.type_as, real(*_SHAPE), integer(1)),
    ),
}

_DROPOUTS: dict[str, tuple[Sample, ...]] = {
    "dropout": (
        sample(nn.Dropout(0.5), real(*_SHAPE)),
        sample(F.dropout, real(*_SHAPE), 0.5, training=False),
        sample(torch.dropout, real(*_SHAPE), 0.5, True),
    ),
    "feature_dropout": (
        sample(nn.Dropout2d(0.5), real(2, 4, 3, 3)),
        sample(F.dropout1d, real(*_SHAPE), training=False),
    ),
    "alpha_dropout": (
        sample(nn.AlphaDropout(0.5), real(*_SHAPE)),
        sample(F.alpha_dropout, real(*_SHAPE), training=False),
    ),
    "feature_alpha_dropout": (
        sample(nn.FeatureAlphaDropout(0.5), real(*_SHAPE)),
        sample(nn.FeatureAlphaDropout(0.5).eval(), real(*_SHAPE)),
    ),
    "drop_path": (
        sample(TinyDropPath(0.5), real(8, 4, 3)),
        sample(TinyDropPath(0.5).eval(), real(8, 4, 3)),
    ),
}

SAMPLES: dict[str, tuple[Sample, ...]] = {
    **_ACTIVATIONS,
    **_ARITHMETIC,
    **_COMPARISONS,
    **_CASTS,
    **_DROPOUTS,
}
