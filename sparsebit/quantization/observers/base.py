"""What an observer is, what it returns, and what it says about data that cannot be calibrated on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.quantization.numerics import GridSpec
from sparsebit.registry import Registry

State = TypeVar("State", bound="tuple[Tensor, ...]")
Kind = TypeVar("Kind", bound="type[Observer[Any]]")


class Range(NamedTuple):
    """The part of the number line that a grid should cover, for each row; zero is inside."""

    lo: Tensor  # [C]
    hi: Tensor  # [C]


class CalibrationError(SparsebitError):
    """Data that no range can be taken from; ``row`` is the first row that holds it."""

    def __init__(self, message: str, *, row: int, **parts: str | None) -> None:
        super().__init__(message, **parts)
        self.row = row


class Observer(ABC, Generic[State]):
    """Measures the range of a tensor from a stream of batches.

    Subclasses are frozen dataclasses of settings. What was seen is a value of its own, a named tuple of tensors
    whose size does not depend on the amount of data, and which live on the device of the data. So the work
    can be streamed, saved, and merged between processes, and old states stay valid.

    Data comes as rows ([C, N], one range for each; see ``granularity.to_rows``). Where ``by_sample`` is true the
    order of the samples matters, and it comes as [C, B, M] (``granularity.to_samples``).
    """

    by_sample: ClassVar[bool] = False

    @abstractmethod
    def init(self, x: Tensor) -> State:
        """The state before any data; ``x`` is looked at for its rows, dtype and device only."""

    @abstractmethod
    def update(self, state: State, x: Tensor) -> State:
        """The state after one more batch. Raises ``CalibrationError`` on NaN or infinity."""

    @abstractmethod
    def merge(self, a: State, b: State) -> State:
        """The state after the data of ``a`` and then that of ``b``."""

    @abstractmethod
    def finish(self, state: State, grid: GridSpec) -> Range:
        """The range to cover with a grid of this kind. Without any data it is [0, 0]."""


@runtime_checkable
class WholeTensorObserver(Protocol):
    """An observer that does better on a tensor it is shown whole, such as a weight, than on a stream."""

    def observe(self, x: Tensor, grid: GridSpec) -> Range:
        """The range of ``x`` [C, N], with nothing else to come."""


OBSERVERS: Registry[type[Observer[Any]]] = Registry("observer")


def register_observer(name: str, *, replace: bool = False) -> Callable[[Kind], Kind]:
    """Class decorator that makes an observer available under ``name`` in configurations."""
    return OBSERVERS.register(name, replace=replace)


def observe(observer: Observer[Any], x: Tensor, grid: GridSpec) -> Range:
    """The range of one complete tensor [C, N], by the observer's own way for such if it has one."""
    if isinstance(observer, WholeTensorObserver):
        return observer.observe(x, grid)
    return observer.finish(observer.update(observer.init(x), x), grid)


def float_dtype(x: Tensor) -> torch.dtype:
    """What ranges of ``x`` are kept in: float64 for float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def no_range(x: Tensor) -> Range:
    """The range of no data: [+inf, -inf] for each row of ``x``, neutral under minimum and maximum."""
    lo = torch.full((len(x),), torch.inf, dtype=float_dtype(x), device=x.device)
    return Range(lo, -lo)


def extremes(x: Tensor) -> Range:
    """Smallest and largest value along the last axis. Raises ``CalibrationError`` on NaN or infinity.

    The check is on the result and so next to free: NaN and infinity survive minimum and maximum.
    """
    if not x.is_floating_point():
        x = x.to(torch.float32)
    if x.shape[-1] == 0:
        lo = torch.full(x.shape[:-1], torch.inf, dtype=float_dtype(x), device=x.device)
        return Range(lo, -lo)
    if x.numel() == x.shape[-1]:
        lo, hi = (end.view(x.shape[:-1]) for end in x.reshape(-1).aminmax())
    else:  # along an axis aminmax is a slow kernel, slower than these two together
        lo, hi = x.amin(-1), x.amax(-1)
    finite = torch.maximum(hi, -lo) < torch.inf  # false for NaN
    if not finite.all():
        raise _not_finite(x, finite)
    return Range(lo.to(float_dtype(x)), hi.to(float_dtype(x)))


def _not_finite(x: Tensor, finite: Tensor) -> CalibrationError:
    row = int((~finite.reshape(len(x), -1).all(1)).nonzero()[0])
    values = x[row]
    nans, infinities = int(values.isnan().sum()), int(values.isinf().sum())
    return CalibrationError(
        f"row {row} of {len(x)} holds values that are not finite",
        row=row,
        got=f"{nans} NaN and {infinities} infinite among {values.numel()} values",
        hint="look at the data and the weights; a float16 model may also have overflowed",
    )
