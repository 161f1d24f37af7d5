"""What a loader may be, how its batches are read, and the errors for batches that do not fit."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from sparsebit.batches.calls import Call, show_shapes
from sparsebit.errors import CaptureError, SparsebitError
from sparsebit.progress import length, progress

MOST_BATCHES = 512  # of a loader that has no length, such as an endless generator
FEED = "pass feed=, a function that makes the arguments of a batch (a tuple or a dict)"
_logger = logging.getLogger(__name__)


class DataError(SparsebitError):
    """Data that is missing, or that does not fit the model or the step it is given to."""


class NoBatchesError(DataError):
    """A loader without batches."""


def read_batches(
    loader: Any, batches: int | None = None, what: str = "reading", shown: bool | None = False
) -> Iterator[Any]:
    """The items of a loader, with a progress bar; at least one, or an error.

    A single tensor or dict is one batch. At most ``MOST_BATCHES`` are read from a loader without a length, unless
    ``batches`` says how many; the log says so.
    """
    if batches is not None and not (isinstance(batches, int) and batches >= 1):
        raise DataError(
            "at least one batch is needed; batches= is their number", got=f"batches={batches!r:.80}"
        )
    items = _items(loader)
    total = length(items)
    limit = MOST_BATCHES if batches is None and total is None else batches
    total = limit if total is None else min(total, limit or total)
    source, count = iter(items), 0
    # The loader is not asked for more batches than are used: creating one may be slow.
    for item in progress(itertools.islice(source, limit), what, total=total, shown=shown):
        count += 1
        yield item
    if count == 0:
        raise _no_batches(loader)
    if batches is None and count == MOST_BATCHES and next(source, None) is not None:
        _logger.warning(
            "the loader has no length, and reading stopped after %d batches; pass batches= for another number",
            MOST_BATCHES,
        )


def peek(loader: Any) -> tuple[Any, Any]:
    """The first batch, and a loader that still yields all of them."""
    items = _items(loader)
    source = iter(items)
    for first in source:
        return first, itertools.chain([first], source) if source is items else items
    raise _no_batches(loader)


@contextlib.contextmanager
def explained(number: int, call: Call, example: Call) -> Iterator[None]:
    """Inside the block the model runs one batch; if torch fails, the error names the batch and its shapes."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except CaptureError as error:  # the graph's own error says what does not fit
        raise DataError(
            f"batch {number} (counted from 1) does not fit: {error.message}",
            where=error.where,
            expected=error.expected,
            got=error.got or show_shapes(call),
            hint=error.hint,
        ) from error
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        if isinstance(error, SparsebitError):
            raise
        raise DataError(
            f"the model cannot run batch {number} (counted from 1): {str(error).partition(chr(10))[0]}",
            expected=f"as the example inputs: {show_shapes(example)}" if any(example) else None,
            got=show_shapes(call),
            hint=FEED,
        ) from error


def _no_batches(loader: Any) -> NoBatchesError:
    return NoBatchesError(
        "the loader gave no batches",
        expected="at least one",
        got=type(loader).__name__,
        hint="a generator can be read only once; pass a list or a DataLoader to read it again",
    )


def _items(loader: Any) -> Iterable[Any]:
    if isinstance(loader, (Tensor, Mapping, Call)):
        return [loader]
    if isinstance(loader, Dataset) and not isinstance(loader, IterableDataset):
        raise DataError(
            "a Dataset gives single samples, not batches",
            got=type(loader).__name__,
            hint="pass DataLoader(dataset, batch_size=32), or batch_size=None if its items are batches",
        )
    readable = hasattr(loader, "__iter__") or hasattr(loader, "__getitem__")
    if isinstance(loader, (str, bytes)) or not readable:
        raise DataError(
            f"{type(loader).__name__} cannot be read as data",
            expected="a DataLoader, a list of batches, or one tensor",
        )
    items: Iterable[Any] = loader
    return items
