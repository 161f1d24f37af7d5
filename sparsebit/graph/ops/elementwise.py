"""Arithmetic, element by element. Each name also covers the Python operator and the in-place twin."""

from __future__ import annotations

import operator
from collections.abc import Sequence

import torch
from torch.fx import Node

from sparsebit.graph.ops.spec import Bounds, KeepsZero, Masks, OpCall, OpSpec, bounds_in
from sparsebit.graph.ops.spellings import named, present


def zero_with_zero(call: OpCall, zeros: Sequence[bool]) -> bool:
    """Zero where every operand is; a number among them must be written as 0."""
    operands = [call.arguments.get(name) for name in call.spec.activations]
    return all(zeros) and all(one == 0 for one in operands if not _is_tensor(one))


def _zero_in_both_branches(call: OpCall, zeros: Sequence[bool]) -> bool:
    return zero_with_zero(call, [True, *zeros[1:]])  # whatever the condition


def _is_tensor(operand: object) -> bool:
    """Whether an operand is a tensor of the graph, and not a number or a size."""
    return isinstance(operand, Node) and not isinstance(operand.meta.get("value"), int | float)


def zero_first(call: OpCall, zeros: Sequence[bool]) -> bool:
    """Zero where the first operand is a tensor and zero, and the second is not zero too: 1 / x and 0 / 0 are not."""
    return isinstance(call.arguments["input"], Node) and zeros[0] and not any(zeros[1:])


def _zero_to_a_power(call: OpCall, zeros: Sequence[bool]) -> bool:
    exponent = call.arguments.get("exponent")
    return zero_first(call, zeros) and isinstance(exponent, (int, float)) and exponent > 0


def _unary(
    name: str,
    *targets: object,
    signature: str = "input",
    view: bool = False,
    zero: bool = False,
    homogeneous: bool = False,
    bounds: Bounds | None = None,
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="elementwise",
        signature=signature,
        elementwise=True,
        view=view,
        keeps_zero=zero,
        homogeneous=homogeneous,
        bounds=bounds,
    )


def _binary(
    name: str,
    *targets: object,
    signature: str = "input, other",
    reverse: str | None = None,
    zero: KeepsZero = False,
    masks: Masks = "",
) -> OpSpec:
    """``reverse`` is the Tensor method behind ``1 - x``: same operator, operands swapped."""
    first, second = signature.split(", ")[:2]
    swapped = present(torch.Tensor, reverse) if reverse else ()
    return OpSpec(
        name=name,
        targets=named(name, *targets, *swapped),
        family="elementwise",
        signature=signature,
        orders=dict.fromkeys(swapped, f"{second}, {first}"),
        activations=(first, second),
        elementwise=True,
        keeps_zero=zero,
        masks=masks,
    )


def _several(
    name: str,
    *targets: object,
    signature: str,
    activations: tuple[str, ...],
    zero: KeepsZero = False,
    masks: Masks = "",
    **aliases: str,
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="elementwise",
        signature=signature,
        aliases=aliases,
        activations=activations,
        elementwise=True,
        keeps_zero=zero,
        masks=masks,
    )


def _dunders(name: str) -> tuple[object, ...]:
    return present(torch.Tensor, f"__{name}__", f"__i{name}__")


_ARITHMETIC = (
    _binary(
        "add",
        operator.add,
        operator.iadd,
        *_dunders("add"),
        signature="input, other, alpha=1",
        reverse="__radd__",
        zero=zero_with_zero,
        masks="added",
    ),
    OpSpec(
        name="sub",
        targets=named(
            *("sub", "subtract", "rsub", operator.sub, operator.isub),
            *(*_dunders("sub"), torch.Tensor.__rsub__),
        ),
        family="elementwise",
        signature="input, other, alpha=1",
        orders=dict.fromkeys((torch.rsub, "aten::rsub", torch.Tensor.__rsub__), "other, input, alpha=1"),
        activations=("input", "other"),
        elementwise=True,
        keeps_zero=zero_with_zero,
        masks="added",
    ),
    _binary(
        "mul",
        "multiply",
        operator.mul,
        operator.imul,
        *_dunders("mul"),
        reverse="__rmul__",
        zero=lambda call, zeros: any(zeros),
    ),
    _binary(
        "div",
        *("divide", "true_divide", operator.truediv, operator.itruediv, *_dunders("truediv")),
        signature="input, other, rounding_mode=None",
        reverse="__rtruediv__",
        zero=zero_first,
    ),
    _binary(
        "floor_divide",
        *(operator.floordiv, operator.ifloordiv, *_dunders("floordiv")),
        reverse="__rfloordiv__",
        zero=zero_first,
    ),
    _binary("remainder", operator.mod, operator.imod, *_dunders("mod"), reverse="__rmod__"),
    _binary("fmod"),
    _binary(
        "pow",
        *(operator.pow, operator.ipow, *_dunders("pow")),
        signature="input, exponent",
        reverse="__rpow__",
        zero=_zero_to_a_power,
    ),
    _binary("float_power", signature="input, exponent"),
    _binary("maximum", zero=zero_with_zero),
    _binary("minimum", zero=zero_with_zero),
    _binary("fmax", zero=zero_with_zero),
    _binary("fmin", zero=zero_with_zero),
    _binary("atan2", "arctan2"),
    _binary("hypot"),
    _binary("copysign"),
    _binary("ldexp"),
    _binary("logaddexp"),
    _binary("logaddexp2"),
    _binary("xlogy"),
    _binary("heaviside", signature="input, values"),
    _binary("gcd"),
    _binary("lcm"),
    _binary("complex", signature="real, imag"),
    _binary("polar", signature="abs, angle"),
)

_TERNARY = (
    OpSpec(
        name="where",
        targets=(torch.Tensor.where, "aten::where"),
        overloads={torch.where: lambda node: "where" if len(node.args) + len(node.kwargs) > 1 else "nonzero"},
        family="elementwise",
        signature="condition, input, other",
        orders={torch.Tensor.where: "input, condition, other"},
        aliases={"self": "input"},
        activations=("condition", "input", "other"),
        elementwise=True,
        keeps_zero=_zero_in_both_branches,
        masks="chosen",
    ),
    _several(
        "addcmul",
        signature="input, tensor1, tensor2, *, value=1",
        activations=("input", "tensor1", "tensor2"),
        zero=zero_with_zero,
    ),
    _several(
        "addcdiv",
        signature="input, tensor1, tensor2, *, value=1",
        activations=("input", "tensor1", "tensor2"),
    ),
    _several(
        "lerp", signature="input, end, weight", activations=("input", "end", "weight"), zero=zero_with_zero
    ),
    _several(
        "masked_fill",
        signature="input, mask, value",
        activations=("input", "mask"),
        zero=lambda call, zeros: zeros[0] and call.arguments.get("value") == 0,
        masks="chosen",
    ),
    _several(
        "copy",
        "sparsebit.graph.functional.overwrite",
        signature="input, src, non_blocking=False",
        activations=("input", "src"),
        tensor="input",
        source="src",
    ),
)

_UNARY = (
    _unary("neg", "negative", operator.neg, torch.Tensor.__neg__, zero=True, homogeneous=True),
    _unary("positive", operator.pos, torch.Tensor.__pos__, view=True, zero=True, homogeneous=True),
    _unary("abs", "absolute", operator.abs, abs, torch.Tensor.__abs__, zero=True, homogeneous=True),
    _unary("exp"),
    _unary("exp2"),
    _unary("expm1", zero=True),
    _unary("log"),
    _unary("log2"),
    _unary("log10"),
    _unary("log1p", zero=True),
    _unary("sqrt", zero=True),
    _unary("rsqrt"),
    _unary("square", zero=True),
    _unary("reciprocal"),
    _unary("sin", zero=True),
    _unary("cos"),
    _unary("tan", zero=True),
    _unary("asin", "arcsin", zero=True),
    _unary("acos", "arccos"),
    _unary("atan", "arctan", zero=True),
    _unary("sinh", zero=True),
    _unary("cosh"),
    _unary("asinh", "arcsinh", zero=True),
    _unary("acosh", "arccosh"),
    _unary("atanh", "arctanh", zero=True),
    _unary("sinc"),
    _unary("erf", zero=True),
    _unary("erfc"),
    _unary("erfinv", zero=True),
    _unary("lgamma", "gammaln"),
    _unary("digamma"),
    _unary("i0"),
    _unary("logit", signature="input, eps=None"),
    _unary("floor", zero=True),
    _unary("ceil", zero=True),
    _unary("round", round, signature="input, *, decimals=0", zero=True),
    _unary("trunc", "fix", zero=True),
    _unary("frac", zero=True),
    _unary("sign", zero=True),
    _unary("sgn", zero=True),
    _unary("angle"),
    _unary("deg2rad", zero=True),
    _unary("rad2deg", zero=True),
    _unary("nan_to_num", signature="input, nan=0.0, posinf=None, neginf=None", zero=True),
    _unary("clamp", "clip", signature="input, min=None, max=None", bounds=bounds_in("min", "max")),
    _unary("clamp_min", signature="input, min", bounds=bounds_in("min", None)),
    _unary("clamp_max", signature="input, max", bounds=bounds_in(None, "max")),
    _unary("fill", signature="input, value"),
    _unary("zero", zero=True),
    OpSpec(
        name="bucketize",
        targets=named("bucketize"),
        family="elementwise",
        signature="input, boundaries, *, out_int32=False, right=False",
        channels="first_operand",
        elementwise=True,
        integers=True,
    ),
)

OPS = (*_ARITHMETIC, *_TERNARY, *_UNARY)
