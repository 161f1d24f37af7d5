"""Integers that remember which tensor size they came from.

A model computes shapes in plain Python: ``x.view(b, s // 2, -1)``. While recording, sizes are ``int`` subclasses whose
arithmetic builds an expression, so that the graph asks its own tensors for their sizes instead of repeating the
example's numbers. Conversions that Python does not allow to follow (``int()``, ``math.sqrt``, a comparison) are
reported to the recorder.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Protocol

from torch.fx import Node


class SizeUser(Protocol):
    """Is notified when a size stops being symbolic."""

    closed: bool  # the recording is over: a size that outlived it (in a cache of the model) is a plain number

    def size_lost(self, size: Any, how: str) -> None:
        """A size became a plain number: the graph keeps the example's."""

    def size_decided(
        self, size: Any, function: Callable[..., bool], operands: tuple[Any, ...], result: bool
    ) -> None:
        """Python compared a size with ``function(*operands)``: the graph keeps the branch that was taken."""


class Expression:
    """``function(*operands)`` over sizes: operands are expressions, nodes or numbers."""

    __slots__ = ("function", "node", "operands", "value")

    def __init__(self, function: Callable[..., Any], operands: tuple[Any, ...], value: Any) -> None:
        self.function, self.operands, self.value = function, operands, value
        self.node: Node | None = None  # filled when the expression is first used in the graph


class Symbolic:
    """The common base of ``SizeInt`` and ``SizeFloat``; the operators are added below."""

    expression: Expression
    user: SizeUser

    @classmethod
    def of(cls, value: Any, expression: Expression, user: SizeUser) -> Any:
        """A number with its origin."""
        size = cls.__new__(cls, value)  # type: ignore[call-arg]
        size.expression, size.user = expression, user
        return size

    def __bool__(self) -> bool:
        result = bool(plain(self))
        self.user.size_decided(self, bool, (self,), result)
        return result

    def __divmod__(self, other: Any) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Any, Any]:
        return other // self, other % self

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        return combine(operator.pow, self, other) if modulus is None else combine(pow, self, other, modulus)

    def __repr__(self) -> str:
        return repr(plain(self))

    def __reduce__(self) -> Any:
        return type(plain(self)), (plain(self),)

    def __deepcopy__(self, memo: Any) -> Any:
        return self


def plain(value: Any) -> Any:
    """A size as a plain number; anything else unchanged."""
    if isinstance(value, SizeInt):
        return int.__int__(value)
    return float.__float__(value) if isinstance(value, SizeFloat) else value


def _operand(value: Any) -> Any:
    return value.expression if isinstance(value, Symbolic) and not value.user.closed else plain(value)


def combine(function: Callable[..., Any], *values: Any) -> Any:
    """``function`` of numbers, as a size if one of them is a size and the result is a number."""
    result = function(*(plain(value) for value in values))
    sizes = [value for value in values if isinstance(value, Symbolic) and not value.user.closed]
    kind: Any = {int: SizeInt, float: SizeFloat}.get(type(result))
    if kind is None or not sizes:
        return result
    return kind.of(result, Expression(function, tuple(map(_operand, values)), result), sizes[0].user)


def _binary(function: Callable[..., Any], reflected: bool) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if function is operator.mul and isinstance(other, list | tuple | str):
            self.user.size_lost(self, "repeats a sequence")
            return plain(self) * other
        if not isinstance(other, int | float):
            return NotImplemented
        return combine(function, other, self) if reflected else combine(function, self, other)

    return method


def _unary(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *args: combine(function, self, *args)


def _compared(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, int | float):
            return NotImplemented
        result = function(plain(self), plain(other))
        self.user.size_decided(self, function, (self, other), result)
        return result

    return method


def _lost(base: type, name: str, how: str) -> Callable[..., Any]:
    original = getattr(base, name)

    def method(self: Any, *args: Any) -> Any:
        self.user.size_lost(self, how)
        return original(plain(self), *args)

    return method


class SizeInt(Symbolic, int):
    """An ``int`` that came from a tensor's size."""

    __hash__ = int.__hash__
    __int__ = _lost(int, "__int__", "int() of a size")
    __float__ = _lost(int, "__float__", "float() or math of a size")
    bit_length = _lost(int, "bit_length", "bit_length() of a size")
    bit_count = _lost(int, "bit_count", "bit_count() of a size")


class SizeFloat(Symbolic, float):
    """A ``float`` computed from a tensor's size."""

    __hash__ = float.__hash__
    __int__ = _lost(float, "__int__", "int() of a number computed from a size")
    __float__ = _lost(float, "__float__", "float() of a number computed from a size")


_NUMBERS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_BITS = ("lshift", "rshift", "and_", "or_", "xor")
for _kind, _names in ((SizeInt, _NUMBERS + _BITS), (SizeFloat, _NUMBERS)):
    for _name in _names:
        _function, _short = getattr(operator, _name), _name.rstrip("_")
        setattr(_kind, f"__r{_short}__", _binary(_function, reflected=True))
        if _name != "pow":  # takes a modulus too
            setattr(_kind, f"__{_short}__", _binary(_function, reflected=False))
    for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(_kind, f"__{_name}__", _compared(getattr(operator, _name)))
    for _function in (operator.pos, operator.neg, operator.abs, math.floor, math.ceil, math.trunc, round):
        setattr(_kind, f"__{_function.__name__}__", _unary(_function))
SizeInt.__invert__ = _unary(operator.invert)  # type: ignore[method-assign]


def plain_sizes(value: Any) -> Any:
    """A copy of nested arguments with plain numbers in place of sizes."""
    if isinstance(value, Symbolic):
        return plain(value)
    kind = type(value)
    if kind in (tuple, list):
        return kind([plain_sizes(item) for item in value])
    if kind is dict:
        return {key: plain_sizes(item) for key, item in value.items()}
    if kind is slice:
        return slice(plain_sizes(value.start), plain_sizes(value.stop), plain_sizes(value.step))
    if isinstance(value, tuple) and any(isinstance(item, Symbolic) for item in value):  # torch.Size
        return tuple(plain_sizes(item) for item in value)
    return value
