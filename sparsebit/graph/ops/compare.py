"""Comparisons and logic. Results are boolean (or integer bits), so nothing here is ever quantized."""

from __future__ import annotations

import operator

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import family, present

_test = family("compare", elementwise=True)
_pair = family("compare", activations=("input", "other"), elementwise=True)
_whole = family("compare", activations=("input", "other"))
_TWO = "input, other"
_CLOSE = "input, other, rtol=1e-5, atol=1e-8, equal_nan=False"


def _bits(name: str, symbol: str, *methods: object) -> OpSpec:
    """An operator on bits: ``torch.bitwise_and``, ``x & y`` and ``x &= y``."""
    python = getattr(operator, f"{symbol}_", None) or getattr(operator, symbol)
    own = present(torch.Tensor, f"__{symbol}__", f"__i{symbol}__")
    aten = (f"aten::__{symbol}__", f"aten::__i{symbol}__")
    return _pair(name, _TWO, python, getattr(operator, f"i{symbol}"), *own, *methods, *aten)


OPS = (
    _pair("eq", _TWO, operator.eq, torch.Tensor.__eq__),
    _pair("ne", _TWO, "not_equal", operator.ne, torch.Tensor.__ne__),
    _pair("lt", _TWO, "less", operator.lt, torch.Tensor.__lt__),
    _pair("le", _TWO, "less_equal", operator.le, torch.Tensor.__le__),
    _pair("gt", _TWO, "greater", operator.gt, torch.Tensor.__gt__),
    _pair("ge", _TWO, "greater_equal", operator.ge, torch.Tensor.__ge__),
    _pair("isclose", _CLOSE),
    _bits("bitwise_and", "and", torch.Tensor.__rand__),
    _bits("bitwise_or", "or", torch.Tensor.__ror__),
    _bits("bitwise_xor", "xor", torch.Tensor.__rxor__),
    _bits("bitwise_left_shift", "lshift"),
    _bits("bitwise_right_shift", "rshift"),
    *(_pair(f"logical_{name}", _TWO) for name in ("and", "or", "xor")),
    _test("bitwise_not", "input", operator.invert, torch.Tensor.__invert__),
    *map(_test, ("logical_not", "isnan", "isinf", "isposinf", "isneginf", "isfinite", "signbit")),
    _whole(
        "isin",
        "elements, test_elements, *, assume_unique=False, invert=False",
        activations=("elements", "test_elements"),
    ),
    _whole("allclose", _CLOSE),
    _whole("equal", _TWO),
)
