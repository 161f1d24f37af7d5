"""The calibration data on its way through a model, up to one of the calls of its blocks.

The arguments of a block are made by the model's own forward, in which earlier blocks answer with what they returned
when they ran. One such pass records all calls from there on whose arguments are known, which in most models are those
of all blocks. What a later pass reads is kept, on disk if it is large; everything else goes.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, overload

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import BlockCall, BlockRuns, StandIns, run_model
from sparsebit.llm.blocks.route import Lend, Route
from sparsebit.llm.blocks.solve import run_block
from sparsebit.llm.blocks.spill import MOST_BYTES, spilled
from sparsebit.llm.weights.uses import Enough
from sparsebit.quantization.calibration.spill_list import SpillList

BATCH = 8  # sequences that run through a block at once

T = TypeVar("T", covariant=True)
Outputs = Sequence[Sequence[Tensor]]  # what blocks returned, by leaf and batch


class Stream:
    """One of the ways the data goes: through float blocks, or through those that are compressed already.

    Attributes:
        visit: the number of the next call of a block.
        hidden: the hidden states of that call, by batch; after the last one, what it returned.
        calls: by visit, how its block is called on each batch, as far as that is known.
    """

    def __init__(self, model: nn.Module, route: Route, ids: Sequence[Tensor], *, half: bool = False) -> None:
        self.ids, self.visit = ids, 0
        self.hidden: Sequence[Tensor] = []
        self.calls: dict[int, Sequence[BlockCall]] = {}
        self._model, self._route, self.half = model, route, half
        self._blocks = [model.get_submodule(name) for name in route.names]
        self._held: dict[tuple[int, int], Sequence[Tensor]] = {}  # by visit and leaf, for later passes
        self._passed: dict[int, BlockRuns] = {}  # visits to blocks that were not asked for yet
        self._record()
        one, self._single = self._calls_of(ids[0][:1], None)
        sizes = enumerate(zip(one.shape, self.hidden[0].shape, strict=True))
        self._sequence_axis = next((axis for axis, (size, whole) in sizes if size != whole), 0)

    def copy(self) -> Stream:
        """Another stream at the same place, that goes on by itself."""
        twin = copy.copy(self)
        twin.calls, twin._held, twin._passed = dict(self.calls), dict(self._held), dict(self._passed)
        return twin

    def runs(self, block: nn.Module) -> BlockRuns:
        """The next call of a block, which is this one."""
        visit = self._route.visits[self.visit]
        single = self._single[self.visit] if visit.start == 0 else None
        name, leaves = self._route.names[visit.block], self._route.leaves(self.visit)
        limit = MOST_BYTES // self._route.held
        return BlockRuns(
            block,
            self.calls[self.visit],
            self.hidden,
            self.half,
            single,
            name,
            leaves,
            limit,
            self._sequence_axis,
        )

    def advance(self, outputs: Outputs) -> None:
        """Move past the next call, which has returned ``outputs``, by leaf and batch."""
        until = self._route.visits[self.visit].until
        for leaf, values in zip(self._route.leaves(self.visit), outputs, strict=True):
            if until.get(leaf, 0) > self.visit:
                self._held[self.visit, leaf] = values
        self.calls.pop(self.visit)
        self.hidden = outputs[0]
        self.visit += 1
        if self.visit == len(self._route.visits):
            return
        start = self._route.visits[self.visit].start
        if start == self.visit:
            self._record()
        for visit, leaf in list(self._held):
            if self._route.visits[visit].until[leaf] <= start:
                del self._held[visit, leaf]

    def walk(self, to: int, lend: Lend, *, keep: bool = False) -> None:
        """Go up to a visit, running the blocks before it as they are; with ``keep`` they can be collected later."""
        while self.visit < to:
            visit = self._route.visits[self.visit]
            with lend(self._route.names[visit.block]) as block:
                runs = self.runs(block)
                if keep:
                    self._passed[self.visit] = runs
                self.advance(run_block(runs))

    def walk_to(self, number: int | None, lend: Lend) -> None:
        """Go up to the first call of a block, or behind the last call of all."""
        self.walk(len(self._route.visits) if number is None else self._route.visits_of(number)[0], lend)

    def collect(self, number: int, block: nn.Module, lend: Lend) -> BlockRuns:
        """All calls of the block of this number, one after the other as if they were batches of one.

        Other blocks between them run as they are. The stream stays before the last of the calls, unless it is past it.
        """
        visits = self._route.visits_of(number)
        parts = []
        for visit in visits:
            self.walk(visit, lend, keep=True)
            parts.append(self._passed.get(visit) or self.runs(block))
        for visit in visits:
            self._passed.pop(visit, None)
        if len(parts) == 1:
            return parts[0]
        return replace(
            parts[0],
            calls=_View.joined([part.calls for part in parts]),
            hidden=_View.joined([part.hidden for part in parts]),
            leaves=tuple(sorted({leaf for part in parts for leaf in part.leaves})),
        )

    def advance_last(self, runs: BlockRuns, outputs: Outputs) -> None:
        """Move past the last call of a block that was collected, with the outputs of all of its calls."""
        if self.visit == len(self._route.visits):
            return
        visit = self._route.visits[self.visit]
        if self._route.names[visit.block] != runs.name:
            return
        count = len(self.ids)
        own = [outputs[runs.leaves.index(leaf)] for leaf in self._route.leaves(self.visit)]
        first = len(runs.calls) - count
        self.advance([_View.part(one, first, count) if first else one for one in own])

    @torch.no_grad()
    def run_rest(self, number: int) -> Any:
        """The model on one batch, with all blocks answering what they returned."""
        with StandIns(self._blocks, self._answer(number, None)):
            return run_model(self._model, self.ids[number])

    def _record(self) -> None:
        """The hidden states of the next call, and all calls that can be known from here."""
        start, end = self.visit, self._route.end(self.visit)
        calls: list[list[BlockCall]] = [[] for _ in range(start, end)]
        kept = SpillList(MOST_BYTES)  # tensors that derive from results of blocks

        def record() -> Iterator[Tensor]:
            for number, ids in enumerate(self.ids):
                hidden, found = self._calls_of(ids, number)
                if start:
                    tensors, found = _without_tensors(found)
                    kept.append(tensors)
                for to, one in zip(calls, found, strict=True):
                    to.append(one)
                yield hidden

        self.hidden = spilled(record())
        for visit, found in enumerate(calls, start):
            self.calls[visit] = _Calls(found, kept) if start else found

    @torch.no_grad()
    def _calls_of(self, ids: Tensor, number: int | None) -> tuple[Tensor, list[BlockCall]]:
        """The hidden states and the calls of the run of blocks that begins here."""
        found: list[tuple[BlockCall, Tensor]] = []
        with contextlib.suppress(Enough), StandIns(self._blocks, self._answer(number, found)):
            run_model(self._model, ids)
        expected = self._route.end(self.visit) - self.visit
        if len(found) != expected:
            raise self._differs()
        return found[0][1].detach(), [call for call, _ in found]

    def _answer(self, number: int | None, found: list[tuple[BlockCall, Tensor]] | None) -> Callable[..., Any]:
        """What answers for the blocks on a batch; calls from the next one on are recorded in ``found``."""
        visits = iter(enumerate(self._route.visits))
        end = self._route.end(self.visit) if found is not None else 0

        def answer(block: int, *args: Any, **kwargs: Any) -> Any:
            place, visit = next(visits, (0, None))
            if visit is None or visit.block != block:
                raise self._differs()
            call, hidden = BlockCall.of(args, kwargs)
            own = {0: hidden}
            if found is not None and place >= self.visit:
                found.append((call, hidden))
                if place == end - 1:
                    raise Enough
            elif number is not None:
                held = {leaf: one[number] for (of, leaf), one in self._held.items() if of == place}
                own |= {leaf: one.clone() for leaf, one in held.items()}  # the model may write into it
            return visit.answer(own, pytree.tree_leaves((args, kwargs)))

        return answer

    def _differs(self) -> SparsebitError:
        return SparsebitError(
            f"{type(self._model).__name__} calls its blocks in an order that depends on the data",
            expected="the same calls for every batch as for the first sequence",
            hint="quantize it without data (METHOD: rtn)",
        )


class BlockCalls(NamedTuple):
    """How a block is called: the first time, every time, and every time in the float model."""

    first: BlockRuns
    every: BlockRuns
    floats: BlockRuns | None

    @classmethod
    def none(cls, block: nn.Module, name: str) -> BlockCalls:
        """Of a block that is solved without data."""
        runs = BlockRuns(block, [], [], name=name)
        return cls(runs, runs, None)


class Streams:
    """The data after compressed blocks and, if anything looks at it, in the float model."""

    def __init__(self, own: Stream, lend: Lend, *, follow: bool) -> None:
        self.own, self._lend = own, lend
        self.floats = own.copy() if follow else None

    def reach(self, number: int, block: nn.Module) -> BlockCalls:
        """The calls of the block of this number, which is the first that is not compressed."""
        self.own.walk_to(number, self._lend)
        floats = None if self.floats is None else self.floats.collect(number, block, self._lend)
        return BlockCalls(self.own.runs(block), self.own.copy().collect(number, block, self._lend), floats)

    def advance(self, calls: BlockCalls, outputs: Outputs, floats: Outputs | None) -> None:
        """Move past the block's first call, and in the float model past its last."""
        self.own.advance(outputs)
        if self.floats is not None and calls.floats is not None and floats is not None:
            self.floats.advance_last(calls.floats, floats)

    def finish(self) -> None:
        """Move past the last call."""
        self.own.walk_to(None, self._lend)


class _Calls(Sequence[BlockCall]):
    """Calls whose tensors are in a list that may be on disk; calls of one batch share theirs."""

    def __init__(self, calls: list[BlockCall], tensors: SpillList) -> None:
        self._calls, self._tensors = calls, tensors

    def __len__(self) -> int:
        return len(self._calls)

    @overload
    def __getitem__(self, index: int) -> BlockCall: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[BlockCall]: ...
    def __getitem__(self, index: int | slice) -> BlockCall | Sequence[BlockCall]:
        if isinstance(index, slice):
            return _View([(self, place) for place in range(len(self))[index]])
        tensors, call = self._tensors[index], self._calls[index]
        args, kwargs = pytree.tree_map_only(_Place, lambda one: tensors[one.index], (call.args, call.kwargs))
        return BlockCall(args, kwargs, call.hidden)


@dataclass(frozen=True)
class _Place:
    """Where a tensor of a call is."""

    index: int


def _without_tensors(calls: Sequence[BlockCall]) -> tuple[list[Tensor], list[BlockCall]]:
    """The tensors in the calls of one batch, each once, and the calls with places instead."""
    places: dict[int, tuple[int, Tensor]] = {}

    def place(tensor: Tensor) -> _Place:
        return _Place(places.setdefault(id(tensor), (len(places), tensor))[0])

    without = []
    for call in calls:
        args, kwargs = pytree.tree_map_only(Tensor, place, (call.args, dict(call.kwargs)))
        without.append(BlockCall(args, kwargs, call.hidden))
    return [tensor for _, tensor in places.values()], without


class _View(Sequence[T]):
    """Items of other sequences, which are not copied."""

    def __init__(self, items: list[tuple[Sequence[T], int]]) -> None:
        self._items = items

    @classmethod
    def joined(cls, parts: Sequence[Sequence[T]]) -> _View[T]:
        return cls([(part, index) for part in parts for index in range(len(part))])

    @classmethod
    def part(cls, whole: Sequence[T], first: int, count: int) -> _View[T]:
        return cls([(whole, index) for index in range(first, first + count)])

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        if isinstance(index, slice):
            return _View(self._items[index])
        whole, place = self._items[index]
        return whole[place]
