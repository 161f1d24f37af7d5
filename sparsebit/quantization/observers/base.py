"""The interface of observers, their results, and the error for data that cannot be used for calibration."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, overload, runtime_checkable

import torch
from torch import Tensor

from sparsebit.config.engine.plugins import PlugInClasses, name_to_register
from sparsebit.config.quantization.plugins import BOTH_STATIC, OBSERVER_RULES, STATIC_A, NameRule
from sparsebit.errors import PlugInError, SparsebitError
from sparsebit.numerics import CodeType
from sparsebit.numerics.finite import all_finite
from sparsebit.numerics.snapping import compute_dtype

State = TypeVar("State", bound="tuple[Tensor, ...]")
Kind = TypeVar("Kind", bound="type[Observer[Any]]")


class Range(NamedTuple):
    """The interval that a grid should cover, for each row; it contains zero."""

    lo: Tensor  # [C]
    hi: Tensor  # [C]


class CalibrationError(SparsebitError):
    """Data from which no range can be computed; ``row`` is the first such row, if known."""

    def __init__(self, message: str, *, row: int | None = None, **parts: str | None) -> None:
        super().__init__(message, **parts)
        self.row = row


class Observer(ABC, Generic[State]):
    """Measures the range of a tensor from a stream of batches.

    Subclasses are frozen dataclasses of settings. The state is a separate value: a named tuple of tensors whose size
    does not depend on the amount of data, on the device of the data. So measurements can be streamed, saved, and merged
    between processes, and old states stay valid.

    Data comes as rows ([C, N], one range for each; see ``numerics.layout.to_rows``). If ``by_sample`` is true, the
    order of the samples matters, and data comes as [C, B, M] (``to_samples``).
    """

    by_sample: ClassVar[bool] = False

    @abstractmethod
    def init(self, x: Tensor) -> State:
        """The state before any data; only the rows, dtype and device of ``x`` are used."""

    @abstractmethod
    def update(self, state: State, x: Tensor) -> State:
        """The state after one more batch, without waiting for the device: nothing is read back from ``x``.

        NaN and infinity stay in the state, in the tensors of ``fields_to_check``.
        """

    @abstractmethod
    def merge(self, a: State, b: State) -> State:
        """The state after the data of ``a`` and then that of ``b``."""

    @abstractmethod
    def finish(self, state: State, code: CodeType) -> Range:
        """The range to cover with a grid of this kind. Without any data it is [0, 0]."""

    def fields_to_check(self, state: State) -> list[Tensor]:
        """The tensors of a state that are finite if all data was; by default its floating-point fields."""
        return [field for field in state if field.is_floating_point()]

    def is_finite(self, state: State) -> Tensor:
        """Whether all data of a state that saw some was finite: one boolean, still on the device."""
        return all_finite(self.fields_to_check(state))


@runtime_checkable
class WholeTensorObserver(Protocol):
    """An observer that can do better on a complete tensor, such as a weight, than on a stream."""

    def observe(self, x: Tensor, code: CodeType) -> Range:
        """The range of the complete tensor ``x`` [C, N]."""


OBSERVERS: PlugInClasses[type[Observer[Any]], NameRule] = PlugInClasses(OBSERVER_RULES, Observer)


@overload
def register_observer(name: Kind) -> Kind: ...
@overload
def register_observer(
    name: str | None = None, *, replace: bool = False, rule: NameRule | None = None
) -> Callable[[Kind], Kind]: ...
def register_observer(
    name: Kind | str | None = None, *, replace: bool = False, rule: NameRule | None = None
) -> Kind | Callable[[Kind], Kind]:
    """Class decorator that makes an observer known by name, also to configurations.

    On a class with an attribute ``TYPE`` it needs no name and no parentheses. A configuration may give the fields of a
    dataclass under OPTIONS. ``rule`` says where the observer can be used; without it, everywhere except per token,
    where nothing is streamed, and on weights only if it does not distinguish samples.

    Example:
        >>> from sparsebit.quantization.observers import MinMax
        >>> @register_observer
        ... @dataclasses.dataclass(frozen=True, kw_only=True)
        ... class Doubled(MinMax):
        ...     TYPE = "doc_doubled"
        ...     factor: float = 2.0
        >>> OBSERVERS["doc_doubled"](factor=3.0), OBSERVER_RULES["doc_doubled"].option_names
        (Doubled(factor=3.0), ('factor',))
        >>> OBSERVERS.remove("doc_doubled")
    """
    if isinstance(name, type):
        return register_observer()(name)

    def add(kind: Kind) -> Kind:
        called = name_to_register(kind, name, "register_observer")
        return OBSERVERS.register(called, replace=replace, rule=rule or _rule_for(called, kind))(kind)

    return add


def _rule_for(name: str, kind: type[Observer[Any]]) -> NameRule:
    """The existing rule for the name, with the options of this class."""
    if name in OBSERVER_RULES:
        known = OBSERVER_RULES[name]
    elif getattr(kind, "by_sample", False):
        known = NameRule(schemes={"A": STATIC_A}, because="it distinguishes samples, and a weight has none")
    else:
        known = NameRule(schemes=BOTH_STATIC, because="the range of a token cannot be measured in advance")
    if "__dataclass_fields__" not in vars(kind):  # an inherited one would not name the fields of this class
        return known
    return dataclasses.replace(known, options=kind)


def observe(observer: Observer[Any], x: Tensor, code: CodeType) -> Range:
    """The range of one complete tensor [C, N], by the observer's own ``observe`` if it has one."""
    if isinstance(observer, WholeTensorObserver):
        return require_range(observer, observer.observe(x, code), like=x)
    return require_range(observer, observer.finish(measure_whole(observer, x), code), like=x)


def require_state(observer: Observer[Any], state: Any) -> Any:
    """The state that an observer returned, if it is a named tuple of tensors."""
    if (
        isinstance(state, tuple)
        and hasattr(state, "_fields")
        and all(isinstance(one, Tensor) for one in state)
    ):
        return state
    raise PlugInError(
        f"the observer {type(observer).__name__} did not return a state",
        expected="a named tuple of tensors, from init, update and merge",
        got=f"{state!r:.200}",
    )


def require_range(observer: Observer[Any], found: Any, like: Tensor | None) -> Range:
    """What an observer returned, if it is a range: the mistake of a plug-in would become wrong numbers.

    It has a row for each row of ``like`` [C, ...] and the dtype to compute with its numbers; None in a process that has
    seen no data.
    """
    lo, hi = found if isinstance(found, tuple) and len(found) == 2 else (None, None)
    if not isinstance(lo, Tensor) or not isinstance(hi, Tensor) or not _is_range(lo, hi, like):
        rows = "C" if like is None else len(like)
        raise PlugInError(
            f"the observer {type(observer).__name__} did not return a range",
            expected=f"Range(lo, hi): floating-point tensors [{rows}], finite, with lo <= 0 <= hi",
            got=f"{found!r:.200}",
        )
    dtype = compute_dtype(lo.dtype if like is None else like.dtype)
    return Range(lo.to(dtype), hi.to(dtype))


def _is_range(lo: Tensor, hi: Tensor, like: Tensor | None) -> bool:
    if not (lo.is_floating_point() and hi.is_floating_point() and lo.shape == hi.shape and lo.dim() == 1):
        return False
    right = (lo <= 0) & (hi >= 0) & lo.isfinite() & hi.isfinite()
    return (like is None or len(like) == len(lo)) and bool(right.all())


def measure_whole(observer: Observer[State], x: Tensor) -> State:
    """The state of a complete tensor [C, N]. Raises ``CalibrationError`` on NaN or infinity."""
    state: State = require_state(observer, observer.update(observer.init(x), x))
    if x.numel() and not observer.is_finite(state):
        require_finite(x)
    return state


def is_free_to_ask(x: Tensor) -> bool:
    """Whether a number of a tensor can be read without waiting for a device to catch up."""
    return x.device.type == "cpu"


def no_range(x: Tensor) -> Range:
    """The range of no data: [+inf, -inf] for each row of ``x``, neutral under minimum and maximum."""
    return _empty(x, x.shape[:1])


def _empty(x: Tensor, shape: torch.Size) -> Range:
    lo = torch.full(shape, torch.inf, dtype=compute_dtype(x.dtype), device=x.device)
    return Range(lo, -lo)


def extremes(x: Tensor) -> Range:
    """Smallest and largest value along the last axis, which show NaN and infinity."""
    if not x.is_floating_point():
        x = x.to(torch.float32)
    if x.shape[-1] == 0:
        return _empty(x, x.shape[:-1])
    if x.numel() == x.shape[-1]:
        lo, hi = (end.view(x.shape[:-1]) for end in x.reshape(-1).aminmax())
    else:  # along an axis aminmax is a slow kernel, slower than these two together
        lo, hi = x.amin(-1), x.amax(-1)
    return Range(lo.to(compute_dtype(x.dtype)), hi.to(compute_dtype(x.dtype)))


def require_finite(x: Tensor) -> None:
    """Raise ``CalibrationError``, naming the first row [...], if ``x`` [C, ...] holds NaN or infinity."""
    broken = (~x.reshape(len(x), -1).isfinite().all(1)).nonzero()
    if not len(broken):
        return
    row = int(broken[0])
    values = x[row]
    nans, infinities = int(values.isnan().sum()), int(values.isinf().sum())
    raise CalibrationError(
        f"row {row} of {len(x)} holds values that are not finite",
        row=row,
        got=f"{nans} NaN and {infinities} infinite among {values.numel()} values",
        hint="look at the data and the weights; a float16 model may also have overflowed",
    )
