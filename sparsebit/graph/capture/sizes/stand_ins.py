"""What the model's own source files see for a few built-in names while a recording runs.

``int(x.shape[1] / 2)``, ``math.sqrt(n)``, ``max(h, w)`` and ``range(n)`` would turn a size into a plain number
without a trace, because Python does not let a subclass of ``int`` decide. So these names are put into the global names
of the model's own modules, and of nobody else's, for the time of the recording.
"""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch import Tensor, nn

from sparsebit.graph.capture.sizes.numbers import SizeInt, Symbolic, combine, plain

_NOT_OURS = {"torch", "builtins", "sparsebit", "numpy", "typing", "abc", "collections"}


class LengthReader(Protocol):
    """Who can say how long a tensor is, as a size."""

    quiet: int

    def length(self, tensor: Tensor) -> SizeInt:
        """``len(tensor)``."""


class _LikeBuiltin(type):
    """A stand-in for a built-in type that is equal to it and has its instances."""

    real: type

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.real)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.real)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.real

    def __hash__(cls) -> int:
        return hash(cls.real)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.real, name)


class _Int(metaclass=_LikeBuiltin):
    real = int

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return combine(int, args[0]) if args and isinstance(args[0], Symbolic) else int(*args, **kwargs)


class _Float(metaclass=_LikeBuiltin):
    real = float

    def __new__(cls, *args: Any) -> Any:
        return combine(float, args[0]) if args and isinstance(args[0], Symbolic) else float(*args)


class _Range(metaclass=_LikeBuiltin):
    real = range

    def __new__(cls, *bounds: Any) -> Any:
        for bound in bounds:
            if isinstance(bound, Symbolic):
                bound.user.size_lost(bound, "length of a Python loop")
        return range(*(plain(bound) for bound in bounds))


def _carrying(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of numbers that keeps sizes symbolic."""

    def carry(*args: Any, **kwargs: Any) -> Any:
        numbers = not kwargs and len(args) > 0 and all(isinstance(arg, int | float) for arg in args)
        if numbers and any(isinstance(arg, Symbolic) for arg in args):
            return combine(function, *args)
        return function(*args, **kwargs)

    return carry


class CarryingMath(types.ModuleType):
    """The ``math`` module with functions that keep sizes symbolic."""

    def __getattr__(self, name: str) -> Any:
        value = getattr(math, name)
        return _carrying(value) if callable(value) else value


SIZE_FUNCTIONS: dict[str, Any] = {
    "int": _Int,
    "float": _Float,
    "range": _Range,
    "min": _carrying(min),
    "max": _carrying(max),
}


@contextlib.contextmanager
def size_names(recorder: LengthReader, model: nn.Module, *, everything: bool = True) -> Iterator[None]:
    """Put the stand-ins into the model's own modules, and take them out again.

    Functions and ``range`` are hardly ever used but called, so they are always replaced; ``int`` and ``float`` only on
    demand, since ``type(k) is int`` and ``dtype=float`` tell a stand-in from the real thing.
    """

    thread = threading.get_ident()

    def recording_len(value: Any) -> Any:
        ours = isinstance(value, Tensor) and threading.get_ident() == thread and not recorder.quiet
        if ours and value.dim():
            return recorder.length(value)
        return len(value)

    names = {"len": recording_len} | SIZE_FUNCTIONS
    if not everything:
        names = {name: names[name] for name in names if name not in ("int", "float")}
    touched: list[tuple[dict[str, Any], list[str]]] = []
    maths: list[dict[str, Any]] = []
    for module in _own_modules(model):
        space = vars(module)
        new = [name for name in names if name not in space]
        space.update({name: names[name] for name in new})
        touched.append((space, new))
        if space.get("math") is math:
            space["math"] = CarryingMath("math")
            maths.append(space)
    try:
        yield
    finally:
        for space, new in touched:
            for name in new:
                space.pop(name, None)
        for space in maths:
            space["math"] = math


def _own_modules(model: nn.Module) -> list[types.ModuleType]:
    """The loaded modules of the packages that the model's classes come from."""
    packages = {
        kind.__module__.partition(".")[0] for module in model.modules() for kind in type(module).__mro__
    }
    packages -= _NOT_OURS
    return [
        module
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] in packages and isinstance(module, types.ModuleType)
    ]
