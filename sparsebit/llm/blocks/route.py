"""The order in which a model calls its blocks, and what it computes between them, seen on one sequence.

In most models each block gets the result of the one before it. To see that, no block has to run: stand-ins answer with
random numbers, and the next call gets these very numbers. In any other model the sequence runs through the float
blocks, one of them in memory at a time, and what derives from the result of which block is followed by its storage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import StandIns, find_hidden, hidden_in, reading_ids, run_model

Mark = tuple[int, int]  # the number of a visit, and a leaf of what its block returned
Lend = Callable[[str], contextlib.AbstractContextManager[nn.Module]]

_NUMBERS = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "equal", "allclose"}


class _Given(NamedTuple):
    """A leaf of a block's result that is the argument in this place."""

    place: int


@dataclass
class Visit:
    """One call of a block.

    Attributes:
        block: its number.
        start: the visit that opens the run of blocks which this one belongs to. From there to here, each block gets the
            result of the one before it, and all else that it gets was known before.
        structure: of what the block returns.
        leaves: the flat form of that; hidden states are the first leaf.
        until: by leaf, the last ``start`` whose arguments derive from it; the number of visits for what follows them.
    """

    block: int
    start: int
    structure: Any
    leaves: list[Any]
    until: dict[int, int] = field(default_factory=dict)

    def answer(self, own: Mapping[int, Tensor], given: Sequence[Any]) -> Any:
        """What the block returns, with tensors of its own by leaf, and those it passes from its flat arguments."""
        found = [given[one.place] if isinstance(one, _Given) else one for one in self.leaves]
        for leaf, tensor in own.items():
            found[leaf] = tensor
        return pytree.tree_unflatten(found, self.structure)


@dataclass(frozen=True)
class Route:
    """The blocks of a model by name, and the visits to them in order."""

    names: tuple[str, ...]
    visits: tuple[Visit, ...] = ()

    @classmethod
    def unseen(cls, names: Sequence[str]) -> Route:
        """Of a model that is not run: each block once."""
        return cls(tuple(names), tuple(Visit(block, 0, None, []) for block in range(len(names))))

    @property
    def order(self) -> list[int]:
        """The blocks that are called, by their first call."""
        return list(dict.fromkeys(visit.block for visit in self.visits))

    @property
    def direct(self) -> bool:
        """Whether each block is called once, on the result of the one before it, which nothing else reads."""
        elsewhere = any(visit.start for visit in self.visits) or any(one.until for one in self.visits[:-1])
        return not elsewhere and len(self.order) == len(self.visits)

    def visits_of(self, block: int) -> list[int]:
        """The numbers of the visits to a block."""
        return [number for number, visit in enumerate(self.visits) if visit.block == block]

    def end(self, start: int) -> int:
        """The number after the last visit of the run that begins with ``start``."""
        return start + sum(visit.start == start for visit in self.visits)

    @property
    def held(self) -> int:
        """How many results of visits are kept at once, at most."""
        return max(1, sum(bool(visit.until) for visit in self.visits))

    def leaves(self, number: int) -> tuple[int, ...]:
        """What has to be kept of the result of a visit: the hidden states, and what is read later."""
        return tuple(sorted({0, *self.visits[number].until}))


@torch.no_grad()
def find_route(model: nn.Module, names: Sequence[str], lend: Lend, ids: Tensor) -> Route:
    """The route of one sequence.

    Args:
        model: it may hold no weights in its blocks.
        names: of the blocks.
        lend: the block of a name, with float weights while the context is active.
        ids: token ids [1, length].
    """
    try:
        route = _Tracer(model, names, lend, guess=True).run(model, ids)
    except Exception:  # of a model that computes with random numbers, or on shapes that are not the real ones
        route = None
    if route is None or any(visit.start for visit in route.visits):
        with reading_ids(model, ids):
            route = _Tracer(model, names, lend, guess=False).run(model, ids)
    if not route.visits:
        raise SparsebitError(
            f"{type(model).__name__} called none of its {len(names)} blocks, such as {names[0]!r}",
            expected="blocks that run when the model is called with token ids",
            hint="pass the part of the model that reads token ids, such as its language model",
        )
    return route


class _Tracer(TorchFunctionMode):
    """One run of the model, which sees the visits and follows what derives from their results.

    With ``guess``, blocks answer with random numbers; only the first of each kind is run, for what it returns.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], lend: Lend, *, guess: bool) -> None:
        super().__init__()
        self._names, self._lend, self._guess = names, lend, guess
        self._blocks = [model.get_submodule(name) for name in names]
        self._stand_ins = StandIns(self._blocks, self._visit)
        self._visits: list[Visit] = []
        self._kinds: dict[Any, tuple[Any, list[Any], bool]] = {}
        self._marks: dict[int, frozenset[Mark]] = {}  # by storage
        self._alive: list[Tensor] = []  # so that no other tensor gets the storage of a marked one
        # What became a number of Python, and so may decide anything.
        self._numbers: frozenset[Mark] = frozenset()
        self._used: frozenset[Mark] = frozenset()  # what was computed with since the last visit
        # The hidden states that the last visit gave; None if their shape is new.
        self._answer: Tensor | None = None
        self._generator = torch.Generator().manual_seed(0)
        self._inside = False

    def run(self, model: nn.Module, ids: Tensor) -> Route:
        with self._stand_ins, self:
            output = run_model(model, ids)
        last = len(self._visits) - 1
        read = self._used | self._numbers | self._marks_of(pytree.tree_leaves(output)) | {(last, 0)}
        self._read(read if self._visits else (), last + 1)
        return Route(tuple(self._names), tuple(self._visits))

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._inside:
            return result
        marks = self._marks_of(pytree.tree_leaves((args, kwargs)))
        if marks:
            name = getattr(func, "__name__", "")
            self._used |= marks
            self._numbers |= marks if name in _NUMBERS else frozenset()
            self._mark([*pytree.tree_leaves(result), *(args[:1] if name == "__setitem__" else ())], marks)
        return result

    def _visit(self, block: int, *args: Any, **kwargs: Any) -> Any:
        if self._inside:  # a block inside a block
            return self._stand_ins.run(block, args, kwargs)
        self._inside = True
        try:
            return self._see(block, args, kwargs)
        finally:
            self._inside = False

    def _see(self, block: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        number = len(self._visits)
        given = pytree.tree_leaves((args, kwargs))
        hidden = find_hidden(args, kwargs)[1]
        rest = list(given)
        del rest[next(place for place, one in enumerate(given) if one is hidden)]  # it may be there twice
        others = self._numbers | self._marks_of(rest)
        start = self._visits[-1].start if self._visits else 0
        if number and not (self._is_answer(hidden) and all(visit < start for visit, _ in others)):
            start, others = number, others | self._marks_of([hidden])
        self._read(others, start)
        structure, leaves, keeps = self._returned(block, args, kwargs, given, hidden)
        # Templates of the right shape, without the memory of the values.
        shapes = [one.new_zeros(()).expand(one.shape) if isinstance(one, Tensor) else one for one in leaves]
        visit = Visit(block, start, structure, shapes)
        self._visits.append(visit)
        self._used = frozenset()
        own: dict[int, Tensor] = {}
        for leaf, value in enumerate(leaves):
            if isinstance(value, Tensor):
                own[leaf] = value.clone()
        if self._guess:
            noise = torch.randn(hidden.shape, generator=self._generator)
            own[0] = noise.to(hidden.device, hidden.dtype)
        for leaf, tensor in own.items():
            self._mark([tensor], frozenset({(number, leaf)}))
        self._answer = own[0].clone() if keeps else None
        if not keeps:
            visit.until[0] = 2**62
        return visit.answer(own, given)

    def _returned(
        self, block: int, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Any], hidden: Tensor
    ) -> tuple[Any, list[Any], bool]:
        """The structure and the leaves of what a block returns, and whether hidden states keep their shape."""
        module = self._blocks[block]
        kind = (type(module), *((name, tuple(one.shape)) for name, one in module.named_parameters()))
        if self._guess and kind in self._kinds:
            return self._kinds[kind]
        before = hidden.clone()
        with self._lend(self._names[block]):
            output = self._stand_ins.run(block, args, kwargs)
        found = hidden_in(output).to(before.dtype)
        leaves, structure = pytree.tree_flatten(output)
        places = {id(one): place for place, one in enumerate(given) if not _is_plain(one)}
        rest = [_Given(places[id(one)]) if id(one) in places else one for one in leaves[1:]]
        keeps = found.shape == before.shape
        if self._guess and not keeps:
            raise SparsebitError("a block changes the shape of the hidden states")
        self._kinds[kind] = structure, [found, *rest], keeps
        return self._kinds[kind]

    def _is_answer(self, hidden: Tensor) -> bool:
        """Whether these are the hidden states that the last visit gave, and derive from nothing else."""
        wanted, last = self._answer, len(self._visits) - 1
        return (
            wanted is not None
            and self._marks_of([hidden]) == {(last, 0)}
            and hidden.dtype == wanted.dtype
            and torch.equal(hidden, wanted)
        )

    def _read(self, marks: Iterable[Mark], start: int) -> None:
        for number, leaf in marks:
            until = self._visits[number].until
            until[leaf] = max(until.get(leaf, 0), start)

    def _mark(self, values: Iterable[Any], marks: frozenset[Mark]) -> None:
        for one in values:
            if isinstance(one, Tensor) and (place := _place_of(one)):
                self._marks[place] = self._marks.get(place, frozenset()) | marks
                self._alive.append(one)

    def _marks_of(self, values: Iterable[Any]) -> frozenset[Mark]:
        found: frozenset[Mark] = frozenset()
        for one in values:
            if isinstance(one, Tensor) and not one.is_meta:
                found |= self._marks.get(_place_of(one), frozenset())
        return found


def _place_of(tensor: Tensor) -> int:
    """The address of a tensor's storage; inside ``torch.vmap``, of the tensor behind it."""
    while torch._C._functorch.is_batchedtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.untyped_storage().data_ptr()


def _is_plain(value: Any) -> bool:
    """Whether equal values of this kind are one object by chance."""
    return value is None or isinstance(value, bool | int | float | str)
