"""Arithmetic, element by element. Each name also covers the Python operator and the in-place twin."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import Node

from sparsebit.graph.ops.spec import OpCall, OpSpec, bounds_in
from sparsebit.graph.ops.spellings import family, present

_one = family("elementwise", elementwise=True)
_odd = family("elementwise", elementwise=True, keeps_zero=True)  # zero for zero, as odd functions are
_pair = family("elementwise", elementwise=True, activations=("input", "other"))
_TWO = "input, other"


def zero_with_zero(call: OpCall, zeros: Sequence[bool]) -> bool:
    """Zero if all operands are zero; a number among them must be a literal 0."""
    operands = [call.arguments.get(name) for name in call.spec.activations]
    return all(zeros) and all(one == 0 for one in operands if not _is_tensor(one))


def _zero_in_both_branches(call: OpCall, zeros: Sequence[bool]) -> bool:
    return zero_with_zero(call, [True, *zeros[1:]])  # whatever the condition


def _is_tensor(operand: object) -> bool:
    """Whether an operand is a tensor of the graph, and not a number or a size."""
    return isinstance(operand, Node) and not isinstance(operand.meta.get("value"), int | float)


def zero_first(call: OpCall, zeros: Sequence[bool]) -> bool:
    """Zero if the first operand is a zero tensor and the second is not zero: 1 / x and 0 / 0 are not zero."""
    return isinstance(call.arguments["input"], Node) and zeros[0] and not any(zeros[1:])


def _zero_to_a_power(call: OpCall, zeros: Sequence[bool]) -> bool:
    exponent = call.arguments.get("exponent")
    return zero_first(call, zeros) and isinstance(exponent, (int, float)) and exponent > 0


def _operator(name: str, symbol: str, signature: str, *targets: object, **fields: object) -> OpSpec:
    """Arithmetic with a Python operator: ``x - 1``, ``x -= 1``, and ``1 - x``, a method with its operands swapped."""
    first, second = signature.split(", ")[:2]
    swapped = present(torch.Tensor, f"__r{symbol}__")
    return _pair(
        name,
        signature,
        *(getattr(operator, symbol), getattr(operator, f"i{symbol}"), *targets),
        *(*present(torch.Tensor, f"__{symbol}__", f"__i{symbol}__"), *swapped),
        **{"activations": (first, second), "orders": dict.fromkeys(swapped, f"{second}, {first}"), **fields},
    )


_ARITHMETIC = (
    _operator("add", "add", "input, other, alpha=1", keeps_zero=zero_with_zero, masks="added"),
    _operator(
        "sub",
        "sub",
        "input, other, alpha=1",
        *("subtract", "rsub"),
        orders=dict.fromkeys((torch.rsub, "aten::rsub", torch.Tensor.__rsub__), "other, input, alpha=1"),
        keeps_zero=zero_with_zero,
        masks="added",
    ),
    _operator("mul", "mul", _TWO, "multiply", keeps_zero=lambda call, zeros: any(zeros)),
    _operator(
        *("div", "truediv", "input, other, rounding_mode=None", "divide", "true_divide"),
        keeps_zero=zero_first,
    ),
    _operator("floor_divide", "floordiv", _TWO, keeps_zero=zero_first),
    _operator("remainder", "mod", _TWO),
    _pair("fmod", _TWO),
    _operator("pow", "pow", "input, exponent", keeps_zero=_zero_to_a_power),
    _pair("float_power", "input, exponent", activations=("input", "exponent")),
    *(_pair(name, _TWO, keeps_zero=zero_with_zero) for name in ("maximum", "minimum", "fmax", "fmin")),
    _pair("atan2", _TWO, "arctan2"),
    *(_pair(name, _TWO) for name in ("hypot", "copysign", "ldexp", "logaddexp", "logaddexp2", "xlogy")),
    _pair("heaviside", "input, values", activations=("input", "values")),
    _pair("gcd", _TWO),
    _pair("lcm", _TWO),
    _pair("complex", "real, imag", activations=("real", "imag")),
    _pair("polar", "abs, angle", activations=("abs", "angle")),
)

_TERNARY = (
    _one(
        "where",
        "condition, input, other",
        only=(torch.Tensor.where, "aten::where"),
        overloads={torch.where: lambda node: "where" if len(node.args) + len(node.kwargs) > 1 else "nonzero"},
        orders={torch.Tensor.where: "input, condition, other"},
        aliases={"self": "input"},
        activations=("condition", "input", "other"),
        keeps_zero=_zero_in_both_branches,
        masks="chosen",
    ),
    _one(
        "addcmul",
        "input, tensor1, tensor2, *, value=1",
        activations=("input", "tensor1", "tensor2"),
        keeps_zero=zero_with_zero,
    ),
    _one("addcdiv", "input, tensor1, tensor2, *, value=1", activations=("input", "tensor1", "tensor2")),
    _one("lerp", "input, end, weight", activations=("input", "end", "weight"), keeps_zero=zero_with_zero),
    _one(
        "masked_fill",
        "input, mask, value",
        activations=("input", "mask"),
        keeps_zero=lambda call, zeros: zeros[0] and call.arguments.get("value") == 0,
        masks="chosen",
    ),
    _one(
        "copy",
        "input, src, non_blocking=False",
        "sparsebit.graph.functional.overwrite",
        activations=("input", "src"),
        aliases={"tensor": "input", "source": "src"},
    ),
)

_UNARY = (
    _odd("neg", "input", "negative", operator.neg, torch.Tensor.__neg__, homogeneous=True),
    _odd("positive", "input", operator.pos, torch.Tensor.__pos__, view=True, homogeneous=True),
    _odd("abs", "input", "absolute", operator.abs, abs, torch.Tensor.__abs__, homogeneous=True),
    *map(_one, ("exp", "exp2", "log", "log2", "log10", "rsqrt", "reciprocal", "cos", "cosh", "sinc", "erfc")),
    *map(_odd, ("expm1", "log1p", "sqrt", "square", "sin", "tan", "sinh", "erf", "erfinv", "floor", "ceil")),
    *map(_odd, ("frac", "sign", "sgn", "deg2rad", "rad2deg", "zero")),
    *(_odd(name, "input", f"arc{name[1:]}") for name in ("asin", "atan", "asinh", "atanh")),
    *(_one(name, "input", f"arc{name[1:]}") for name in ("acos", "acosh")),
    _one("lgamma", "input", "gammaln"),
    _one("digamma"),
    _one("i0"),
    _one("angle"),
    _one("logit", "input, eps=None"),
    _odd("round", "input, *, decimals=0", round),
    _odd("trunc", "input", "fix"),
    _odd("nan_to_num", "input, nan=0.0, posinf=None, neginf=None"),
    _one("clamp", "input, min=None, max=None", "clip", bounds=bounds_in("min", "max")),
    _one("clamp_min", "input, min", bounds=bounds_in("min", None)),
    _one("clamp_max", "input, max", bounds=bounds_in(None, "max")),
    _one("fill", "input, value"),
    _one(
        "bucketize",
        "input, boundaries, *, out_int32=False, right=False",
        channels="first_operand",
        integers=True,
    ),
)

OPS = (*_ARITHMETIC, *_TERNARY, *_UNARY)
