"""Comparisons and logic. Results are boolean (or integer bits), so nothing here is ever quantized."""

from __future__ import annotations

import operator

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named, present


def _pairwise(name: str, *targets: object, signature: str = "input, other") -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="compare",
        signature=signature,
        activations=("input", "other"),
        elementwise=True,
    )


def _test(name: str, *targets: object) -> OpSpec:
    return OpSpec(name=name, targets=named(name, *targets), family="compare", elementwise=True)


def _bits(name: str) -> tuple[object, ...]:
    return present(torch.Tensor, f"__{name}__", f"__i{name}__", f"__r{name}__")


OPS = (
    _pairwise("eq", operator.eq, torch.Tensor.__eq__),
    _pairwise("ne", "not_equal", operator.ne, torch.Tensor.__ne__),
    _pairwise("lt", "less", operator.lt, torch.Tensor.__lt__),
    _pairwise("le", "less_equal", operator.le, torch.Tensor.__le__),
    _pairwise("gt", "greater", operator.gt, torch.Tensor.__gt__),
    _pairwise("ge", "greater_equal", operator.ge, torch.Tensor.__ge__),
    _pairwise("isclose", signature="input, other, rtol=1e-5, atol=1e-8, equal_nan=False"),
    _pairwise("bitwise_and", operator.and_, operator.iand, *_bits("and"), "aten::__and__", "aten::__iand__"),
    _pairwise("bitwise_or", operator.or_, operator.ior, *_bits("or"), "aten::__or__", "aten::__ior__"),
    _pairwise("bitwise_xor", operator.xor, operator.ixor, *_bits("xor"), "aten::__xor__", "aten::__ixor__"),
    _pairwise(
        *("bitwise_left_shift", operator.lshift, operator.ilshift, "aten::__lshift__"),
        *present(torch.Tensor, "__lshift__", "__ilshift__"),
    ),
    _pairwise(
        *("bitwise_right_shift", operator.rshift, operator.irshift, "aten::__rshift__"),
        *present(torch.Tensor, "__rshift__", "__irshift__"),
    ),
    _pairwise("logical_and"),
    _pairwise("logical_or"),
    _pairwise("logical_xor"),
    _test("bitwise_not", operator.invert, torch.Tensor.__invert__),
    _test("logical_not"),
    _test("isnan"),
    _test("isinf"),
    _test("isposinf"),
    _test("isneginf"),
    _test("isfinite"),
    _test("signbit"),
    OpSpec(
        name="isin",
        targets=named("isin"),
        family="compare",
        signature="elements, test_elements, *, assume_unique=False, invert=False",
        activations=("elements", "test_elements"),
    ),
    OpSpec(
        name="allclose",
        targets=named("allclose"),
        family="compare",
        signature="input, other, rtol=1e-5, atol=1e-8, equal_nan=False",
        activations=("input", "other"),
    ),
    OpSpec(
        name="equal",
        targets=named("equal"),
        family="compare",
        signature="input, other",
        activations=("input", "other"),
    ),
)
