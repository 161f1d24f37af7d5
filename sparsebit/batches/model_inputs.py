"""The one rule for data: how the batches of a loader become calls of a model.

Calibration, pruning, analysis, export and the command line all read batches here:

- a tensor is the model's input; a dict holds keyword arguments; a tuple or list holds positional arguments;
- ``((a, b), labels)`` and ``({...}, labels)`` hold the arguments in their first item; a list of more items than the
  model has arguments is one argument;
- the example that the model was captured with decides which items are inputs: as many items of a tuple as it had
  positional inputs, and the names of a dict that it had. Without an example the model's signature decides: a dict gives
  the names that it takes, and the last item of a tuple is the label, unless the model requires it;
- everything else (labels, ids) is ignored and named once for a model in the log;
- ``feed``, a function from a batch to a tuple or a dict, replaces all of this.
"""

from __future__ import annotations

import copy
import inspect
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from sparsebit.batches.calls import (
    Call,
    as_call,
    device_of,
    example_call,
    few,
    fit_examples,
    require_dense,
    to_device,
)
from sparsebit.batches.reading import FEED, DataError, read_batches
from sparsebit.errors import with_article

LABELS = ("labels", "label", "targets", "target", "y")  # names of labels
Feed = Callable[[Any], Any]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_SAID: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()  # in the log, by model
_logger = logging.getLogger(__name__)


class Batch(NamedTuple):
    """One batch: the arguments of the call, and the items that are not arguments.

    ``rest`` holds the items of a tuple after the inputs, or the dict itself. ``labels`` is the last of those items, or
    the value of the dict whose name is in ``LABELS``; None if there is none.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    rest: tuple[Any, ...] = ()
    labels: Any = None


class ModelInputs:
    """The inputs of a model: its example call, and the parameters of its ``forward``.

    Args:
        model: a module or function; None takes any arguments.
        example_inputs: positional arguments as a tuple, one tensor, or keyword arguments as a dict.
        example_kwargs: keyword arguments.

    Example:
        >>> inputs = ModelInputs(nn.Linear(2, 2), torch.zeros(1, 2))
        >>> inputs.batch((torch.ones(3, 2), torch.tensor([0, 1, 0]))).labels
        tensor([0, 1, 0])
    """

    def __init__(
        self,
        model: nn.Module | Callable[..., Any] | None = None,
        example_inputs: Any = None,
        example_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self.example = example_call(example_inputs, example_kwargs)
        require_dense(*self.example)
        parameters = _parameters_of(model)
        self._positional = [p for p in parameters if p.kind in _POSITIONAL]
        self._any_number = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._any_name = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._named = [p for p in parameters if p.kind in (*_POSITIONAL, inspect.Parameter.KEYWORD_ONLY)]
        # shared by all that read batches for one model: `quantize` takes an example first, then calibrates
        self._said = _SAID.setdefault(model, set()) if isinstance(model, nn.Module) else set[str]()

    @classmethod
    def of(cls, model: Any) -> ModelInputs:
        """The inputs that a ``QuantModel`` or ``SparseModel`` knows; for anything else, those of its signature."""
        known = getattr(model, "inputs", None)
        return known if isinstance(known, ModelInputs) else cls(model)

    def batch(self, item: Any, feed: Feed | None = None) -> Batch:
        """The call for one item of a loader, and the items that are not part of it."""
        if isinstance(item, Call):
            return Batch(item.args, item.kwargs)
        if feed is not None:
            return Batch(*_fed(feed, item))
        if isinstance(item, Mapping):
            return self._from_dict(item)
        if isinstance(item, Tensor):
            return self._from_items((item,))
        if isinstance(item, (tuple, list)) and item:
            return self._grouped(item) if self._holds_arguments(item[0]) else self._from_items(tuple(item))
        raise DataError(
            "cannot tell what the model's inputs are in this batch",
            expected="a tensor, a tuple, a list or a dict",
            got=f"an empty {type(item).__name__}" if isinstance(item, (tuple, list)) else type(item).__name__,
            hint="make a tensor of the array: torch.from_numpy(batch)"
            if isinstance(item, np.ndarray)
            else FEED,
        )

    def calls(
        self,
        loader: Any,
        batches: int | None = None,
        *,
        feed: Feed | None = None,
        device: torch.device | None = None,
        what: str = "reading",
        shown: bool | None = False,
    ) -> Iterator[Call]:
        """Every batch of a loader as a call, on a device; see ``read_batches``."""
        for item in read_batches(loader, batches, what, shown):
            args, kwargs, *_ = self.batch(item, feed)
            if any(self.example):
                require_dense(args, kwargs)
            yield Call(args, kwargs) if device is None else Call(*to_device((args, kwargs), device))

    def labelled(self, item: Any) -> Batch:
        """Like ``batch``, without labels in the call unless the example had them; raises if there are none."""
        batch = self.batch(item)
        if batch.labels is None:
            raise DataError(
                "a batch has no labels to measure with",
                expected="(inputs, labels), or a dict with 'labels' in it",
                got=type(item).__name__,
            )
        kept = {k: v for k, v in batch.kwargs.items() if k not in LABELS or k in self.example.kwargs}
        return batch._replace(kwargs=kept)

    def call(self, data: Any) -> Call:
        """As ``as_call``, without labels and other items that the model was not captured with.

        Example:
            >>> ModelInputs(None, {"x": 1}).call({"x": 2, "labels": 3})
            Call(args=(), kwargs={'x': 2})
        """
        args, kwargs = Call(data) if self._positional_as_example(data) else as_call(data)
        inputs = len(self.example.args) + len(self.example.kwargs)
        if not inputs or (args and kwargs):
            return Call(args, kwargs)
        if len(args) > inputs or (len(args) > 1 and self._holds_arguments(args[0])):
            return Call(*self.batch(args)[:2])
        names = (*self._names_of(len(self.example.args)), *self.example.kwargs)
        labels = [name for name in kwargs if name in LABELS and name not in names]
        if labels:
            self._say(", ".join(labels), [])
        return Call(args, {name: value for name, value in kwargs.items() if name not in labels})

    def _holds_arguments(self, first: Any) -> bool:
        """Whether the first item of a tuple holds all arguments, and is not one argument of type list or dict."""
        if not isinstance(first, (Mapping, tuple, list)):
            return False
        args, kwargs = self.example
        if args or kwargs:
            return not (args and isinstance(args[0], (Mapping, tuple, list)))
        return isinstance(first, Mapping) or self._any_number or len(first) <= len(self._positional)

    def _grouped(self, items: tuple[Any, ...] | list[Any]) -> Batch:
        first, rest = items[0], tuple(items[1:])
        count = len(first) if isinstance(first, (tuple, list)) else None
        inner = self._from_items(tuple(first), count) if count is not None else self._from_dict(first)
        return inner._replace(rest=rest, labels=rest[-1] if rest else inner.labels)

    def _from_items(self, items: tuple[Any, ...], all_of_them: int | None = None) -> Batch:
        args, kwargs = self.example
        if kwargs and (args or len(kwargs) > 1):
            raise DataError(
                "the example has keyword inputs, so a batch has to name its inputs",
                expected=f"a dict with {', '.join([*self._names_of(len(args)), *kwargs])}",
                got=with_article(type(items[0]).__name__)
                if len(items) == 1
                else f"{len(items)} items without names",
                hint=FEED,
            )
        count = len(args) or len(kwargs) or all_of_them or self._count(len(items))
        if len(items) < count:
            names = ", ".join(self._names_of(count))
            raise DataError(
                f"the model takes {count} inputs{f' ({names})' if names else ''}, but the batch has {len(items)}",
                hint=FEED,
            )
        rest = items[count:]
        if rest:
            unused = [p.name for p in self._positional[count:] if p.name not in LABELS]
            which = f"item {count + 1}" if len(rest) == 1 else f"items {count + 1} to {len(items)}"
            self._say(f"{which} of each batch (labels, because of their position)", unused)
        labels = rest[-1] if rest else None
        if kwargs:
            return Batch((), {next(iter(kwargs)): items[0]}, rest, labels)
        return Batch(items[:count], {}, rest, labels)

    def _from_dict(self, found: Mapping[str, Any]) -> Batch:
        args, kwargs = self.example
        labels = next((found[name] for name in LABELS if name in found), None)
        if len(args) == 1 and isinstance(args[0], Mapping) and not kwargs:
            return Batch((found,), {}, (found,), labels)
        if args or kwargs:
            names = [*self._names_of(len(args)), *kwargs]
            needed = names
            every = len(names) < len(args) + len(kwargs)  # the signature does not name the example's inputs
        else:
            names = [p.name for p in self._named]
            needed = [p.name for p in self._named if p.default is p.empty]
            every = self._any_name
        missing = [name for name in needed if name not in found]
        if missing:
            itself = len(needed) == 1 and not any(name in found for name in names)
            raise DataError(
                f"the batch has no {missing[0]!r}",
                expected=f"a dict with {', '.join(needed)}",
                got=f"a dict with {', '.join(map(str, found))}",
                hint=f"{FEED}; if {needed[0]!r} is the dict itself, feed=lambda batch: (batch,)"
                if itself
                else FEED,
            )
        taken = {str(k): v for k, v in found.items() if every or k in names}
        extra = [str(name) for name in found if name not in taken]
        if extra:
            could = {p.name for p in self._named}
            self._say(", ".join(map(repr, extra)), [n for n in extra if n in could and n not in LABELS])
        return Batch((), taken, (found,), labels)

    def _positional_as_example(self, data: Any) -> bool:
        """Whether a pair of a list and a dict is two positional arguments, as in the example, and not keywords."""
        args, kwargs = self.example
        pair = type(data) is tuple and len(data) == len(args) == 2 and not kwargs
        return pair and isinstance(args[1], Mapping) and isinstance(data[1], Mapping)

    def _count(self, items: int) -> int:
        """How many of a tuple's items are inputs if there is no example: all but the label."""
        required = sum(p.default is p.empty for p in self._positional)
        most = items if self._any_number else len(self._positional)
        return max(min(items - 1, most), required, 1)

    def _names_of(self, count: int) -> list[str]:
        return [p.name for p in self._positional[:count]]

    def _say(self, what: str, could_take: list[str]) -> None:
        """Log once what is not passed; as a warning if the model has a parameter that it may be meant for."""
        if what in self._said:
            return
        self._said.add(what)
        if could_take:
            _logger.warning(
                "not passed to the model: %s. Its forward also takes %s; to pass it, put it into the example "
                "inputs, or pass feed=",
                what,
                ", ".join(could_take[:3]),
            )
        else:
            _logger.info("not passed to the model: %s", what)


def example_from(model: nn.Module | Callable[..., Any] | None, item: Any, feed: Feed | None = None) -> Call:
    """A call to capture a model with, from a batch: without labels, and only a few samples.

    It is the complete batch if the model cannot run on a few samples of it, such as the nodes of one graph.
    """
    args, kwargs, *_ = ModelInputs.of(model).batch(item, feed)
    whole = Call(args, {name: value for name, value in kwargs.items() if name not in LABELS})
    part = few(whole)
    cut = part is not whole and (not isinstance(model, nn.Module) or _runs(model, part))
    return part if cut else whole


def fitting_example(model: nn.Module, saved: Call) -> Call:
    """A saved example on the device of a model; also in its dtype, if the model runs only on that.

    It was converted after it was captured, for instance by ``half()``.
    """
    moved, fitted = Call(*to_device(tuple(saved), device_of(model))), fit_examples(model, saved)
    return moved if _dtypes(moved) == _dtypes(fitted) or _runs(model, moved) else fitted


def _dtypes(call: Call) -> list[torch.dtype]:
    return [leaf.dtype for leaf in pytree.tree_leaves(tuple(call)) if isinstance(leaf, Tensor)]


def _runs(model: nn.Module, call: Call) -> bool:
    """Whether a model runs on a call; the model is not changed."""
    from sparsebit.graph.capture.snapshot import undisturbed

    try:
        with undisturbed(model), torch.no_grad():
            args, kwargs = to_device(copy.deepcopy(tuple(call)), device_of(model))
            model(*args, **kwargs)
    except Exception:
        return False
    return True


def _parameters_of(model: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(getattr(model, "forward", model)).parameters.values())
    except (TypeError, ValueError):  # None, or code without a signature
        anything = lambda *args, **kwargs: None  # noqa: E731
        return list(inspect.signature(anything).parameters.values())


def _fed(feed: Feed, item: Any) -> Call:
    if not callable(feed):
        raise DataError("feed cannot be called", got=with_article(type(feed).__name__), hint=FEED)
    made = feed(item)
    if isinstance(made, (Tensor, Mapping, tuple, list)):
        return example_call(made)
    raise DataError(
        "feed returned something the model cannot be called with",
        expected="a tuple of positional arguments or a dict of keyword arguments",
        got=type(made).__name__,
    )
