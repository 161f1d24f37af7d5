"""Arithmetic, element by element. Each name also covers the Python operator and the in-place twin."""

from __future__ import annotations

import operator

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.targets import named, present


def _unary(name: str, *targets: object, signature: str = "input", view: bool = False) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="elementwise",
        signature=signature,
        channels="keeps",
        elementwise=True,
        view=view,
    )


def _binary(
    name: str, *targets: object, signature: str = "input, other", reverse: str | None = None
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
        channels="joins",
        elementwise=True,
    )


def _several(
    name: str, *targets: object, signature: str, activations: tuple[str, ...], **aliases: str
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="elementwise",
        signature=signature,
        aliases=aliases,
        activations=activations,
        channels="joins",
        elementwise=True,
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
        channels="joins",
        elementwise=True,
    ),
    _binary("mul", "multiply", operator.mul, operator.imul, *_dunders("mul"), reverse="__rmul__"),
    _binary(
        "div",
        *("divide", "true_divide", operator.truediv, operator.itruediv, *_dunders("truediv")),
        signature="input, other, rounding_mode=None",
        reverse="__rtruediv__",
    ),
    _binary(
        "floor_divide",
        *(operator.floordiv, operator.ifloordiv, *_dunders("floordiv")),
        reverse="__rfloordiv__",
    ),
    _binary("remainder", operator.mod, operator.imod, *_dunders("mod"), reverse="__rmod__"),
    _binary("fmod"),
    _binary(
        "pow", operator.pow, operator.ipow, *_dunders("pow"), signature="input, exponent", reverse="__rpow__"
    ),
    _binary("float_power", signature="input, exponent"),
    _binary("maximum"),
    _binary("minimum"),
    _binary("fmax"),
    _binary("fmin"),
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
        channels="joins",
        elementwise=True,
    ),
    _several(
        "addcmul",
        signature="input, tensor1, tensor2, *, value=1",
        activations=("input", "tensor1", "tensor2"),
    ),
    _several(
        "addcdiv",
        signature="input, tensor1, tensor2, *, value=1",
        activations=("input", "tensor1", "tensor2"),
    ),
    _several("lerp", signature="input, end, weight", activations=("input", "end", "weight")),
    _several("masked_fill", signature="input, mask, value", activations=("input", "mask")),
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
    _unary("neg", "negative", operator.neg, torch.Tensor.__neg__),
    _unary("positive", operator.pos, torch.Tensor.__pos__, view=True),
    _unary("abs", "absolute", operator.abs, abs, torch.Tensor.__abs__),
    _unary("exp"),
    _unary("exp2"),
    _unary("expm1"),
    _unary("log"),
    _unary("log2"),
    _unary("log10"),
    _unary("log1p"),
    _unary("sqrt"),
    _unary("rsqrt"),
    _unary("square"),
    _unary("reciprocal"),
    _unary("sin"),
    _unary("cos"),
    _unary("tan"),
    _unary("asin", "arcsin"),
    _unary("acos", "arccos"),
    _unary("atan", "arctan"),
    _unary("sinh"),
    _unary("cosh"),
    _unary("asinh", "arcsinh"),
    _unary("acosh", "arccosh"),
    _unary("atanh", "arctanh"),
    _unary("sinc"),
    _unary("erf"),
    _unary("erfc"),
    _unary("erfinv"),
    _unary("lgamma", "gammaln"),
    _unary("digamma"),
    _unary("i0"),
    _unary("logit", signature="input, eps=None"),
    _unary("floor"),
    _unary("ceil"),
    _unary("round", round, signature="input, *, decimals=0"),
    _unary("trunc", "fix"),
    _unary("frac"),
    _unary("sign"),
    _unary("sgn"),
    _unary("angle"),
    _unary("deg2rad"),
    _unary("rad2deg"),
    _unary("nan_to_num", signature="input, nan=0.0, posinf=None, neginf=None"),
    _unary("clamp", "clip", signature="input, min=None, max=None"),
    _unary("clamp_min", signature="input, min"),
    _unary("clamp_max", signature="input, max"),
    _unary("fill", signature="input, value"),
    _unary("zero"),
    _unary("bucketize", signature="input, boundaries, *, out_int32=False, right=False"),
)

OPS = (*_ARITHMETIC, *_TERNARY, *_UNARY)
