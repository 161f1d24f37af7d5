"""Find out which sizes of the inputs are free: record the model at a second size and compare the two programs.

While recording, sizes are followed as far as Python allows. It does not always (``0.5 * x.size(0)``,
``len(x)``), so nothing is assumed: a dimension is free if recordings at two sizes are the same program with the same
constants. Branches on sizes stay in the graph as checks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.input_size import InputSize
from sparsebit.graph.capture.call.match import same_structure
from sparsebit.graph.capture.modes import Differs, compare
from sparsebit.graph.capture.recording.runs import RecordedRun, Runs
from sparsebit.graph.capture.report import Note
from sparsebit.graph.functional import check_branch

Place = tuple[int, int]  # which input, which dimension
_LONG = 64  # from here on, the second size is half of the first, so it costs less than the first recording

_REMEDIES = {
    "len() of a tensor": "write x.size(0) instead of len(x)",
    "int() of a size": "leave int() out",
    "int() of a number computed from a size": "write a // b instead of int(a / b)",
}


@dataclass(frozen=True)
class Reason:
    """Why a dimension is fixed, and the line of the model that fixed it."""

    text: str
    source: str | None = None
    refused: bool = False  # the model itself does not accept another size


def is_same_program(trace: RecordedRun, other: RecordedRun) -> bool:
    """Whether two recordings are the same program."""
    return _difference(trace, other) is None


class SizeProof:
    """Which dimensions of the inputs of a recorded call are free, and why others are not."""

    def __init__(self, runs: Runs, trace: RecordedRun) -> None:
        self.runs, self.trace = runs, trace
        self.free: set[Place] = set()
        self.fixed: dict[Place, Reason] = {}
        self.evidence: list[RecordedRun] = []  # recordings at other sizes that are the same program
        self._tried: dict[tuple[bool, frozenset[Place]], Reason | None] = {}
        self._run()

    @property
    def followed(self) -> bool:
        """Whether every dimension is free for which the model itself accepts other sizes."""
        return all(reason.refused for reason in self.fixed.values())

    def sizes(self) -> list[tuple[InputSize, ...]]:
        """The result for each input, in order."""
        names = [leaf.path for leaf in self.runs.signature.input_leaves()]
        return [
            tuple(self._verdict(name, (index, dim), extent) for dim, extent in enumerate(tensor.shape))
            for index, (name, tensor) in enumerate(zip(names, self.runs.inputs, strict=True))
        ]

    def _run(self) -> None:
        """Try all probably free dimensions together, then one size after the other."""
        inputs = self.runs.inputs
        if not all(leaf.layout is torch.strided for leaf in inputs):
            reason = Reason("an input is not a dense tensor, so the model was not recorded at a second size")
            self.fixed = {place: reason for place in _places(inputs)}
            return
        groups: dict[tuple[int, int], list[Place]] = {}  # equal extents in the same dimension change together
        for index, dim in _places(inputs):
            groups.setdefault((dim, inputs[index].size(dim)), []).append((index, dim))
        matrices = [parameter for parameter in self.runs.model.parameters() if parameter.dim() > 1]
        widths = {size for one in matrices for size in (one.size(1), one.size(-1))} - {1}  # a batch of one
        likely = [group for (_, extent), group in groups.items() if extent > 0 and extent not in widths]
        if len(likely) > 1:
            self._try([place for group in likely for place in group], double=False)
        for (_, extent), group in groups.items():
            if extent == 0:
                self.fixed |= {place: Reason("the example is empty there") for place in group}
            elif not self.free.issuperset(group):
                self._try_alone(extent, group, groups)
        for dim in sorted({dim for dim, _ in groups}):
            # the rows of a packed sequence and its lengths only change together
            together = [place for place in _places(inputs) if place[1] == dim]
            stuck = [place for place in together if place in self.fixed and self.fixed[place].refused]
            if stuck and len(together) > len(stuck) and self._try(together, double=True) is None:
                self.fixed = {place: reason for place, reason in self.fixed.items() if place not in stuck}

    def _try_alone(self, extent: int, group: list[Place], groups: dict[tuple[int, int], list[Place]]) -> None:
        reason = self._try(group, double=False)
        if reason is not None and extent >= _LONG:
            reason = self._try(group, double=True)
        equal = [place for (_, other), places in groups.items() if other == extent for place in places]
        if reason is not None and len(equal) > len(group):  # for example a mask of length by length
            self._try(equal, double=True)
        if reason is not None and not self.free.issuperset(group):
            self.fixed |= {place: reason for place in group}

    def _try(self, places: list[Place], *, double: bool) -> Reason | None:
        """Record with other sizes; returns None if the program is the same, otherwise the reason why not."""
        key = (double, frozenset(places))
        if key not in self._tried:
            self._tried[key] = self._record(places, double)
        return self._tried[key]

    def _record(self, places: list[Place], double: bool) -> Reason | None:
        inputs = [
            _resized(tensor, [dim for which, dim in places if which == index], double)
            for index, tensor in enumerate(self.runs.inputs)
        ]
        try:
            other = self.runs.record_with(inputs)
        except CaptureError as error:
            return Reason(_told(error), error.where, refused=True)
        reason = _difference(self.trace, other)
        if reason is None:
            self.free.update(places)
            self.evidence.append(other)
        return reason

    def _verdict(self, name: str, place: Place, extent: int) -> InputSize:
        if place in self.free:
            return InputSize(name, place[1], 0, None, "recorded at two sizes")
        reason = self.fixed[place]
        return InputSize.fixed(name, place[1], extent, reason.text, reason.source)

    def drop_settled_branches(self) -> None:
        """Remove checks of branches that depend on fixed sizes only, or that make no difference."""
        checks = _checks(self.trace)
        settled = {index: True for index in range(len(checks))}
        for other in self.evidence:
            theirs = _checks(other)
            aligned = [node.args[2] for node in checks] == [node.args[2] for node in theirs]
            for index, node in enumerate(checks):
                same_branch = aligned and node.args[1] == theirs[index].args[1]
                if not aligned or (same_branch and _sizes_behind(node) != _sizes_behind(theirs[index])):
                    settled[index] = False
        for index, node in enumerate(checks):
            if settled[index]:
                self.trace.graph.erase_node(node)


def _places(inputs: list[Tensor]) -> Iterable[Place]:
    return ((index, dim) for index, tensor in enumerate(inputs) for dim in range(tensor.dim()))


def _resized(tensor: Tensor, dims: list[int], double: bool) -> Tensor:
    for dim in dims:
        extent = tensor.size(dim)
        if extent >= _LONG and extent % 2 == 0 and not double:
            tensor = tensor.narrow(dim, 0, extent // 2)
        else:
            tensor = tensor.repeat_interleave(2, dim)  # what is sorted stays sorted: lengths, offsets
    return tensor


def _told(error: CaptureError) -> str:
    """The error of the model itself at another size, or why it cannot be recorded there."""
    cause = error.__cause__
    text = f"{type(cause).__name__}: {cause}" if cause is not None else error.message
    return f"the model does not run with another size ({text.splitlines()[0]})"


def _difference(trace: RecordedRun, other: RecordedRun) -> Reason | None:
    """How the recording at another size differs.

    A lost size that is now another number counts as a difference even if the program is the same: the model may branch
    on it unseen.
    """
    mine, theirs = trace.recorder.lost, other.recorder.lost
    lost = next((a for a, b in zip(mine, theirs, strict=False) if a != b), None)
    if lost is None:
        return _first_difference(trace, other)
    remedy = _REMEDIES.get(lost.how)
    text = f"{lost.how} makes it a plain number" + (f"; {remedy}" if remedy else "")
    return Reason(text, lost.source and str(lost.source))


def _first_difference(trace: RecordedRun, other: RecordedRun) -> Reason | None:
    mine, theirs = trace.recorder.tape, other.recorder.tape
    try:
        constants = compare(mine.graph, theirs.graph).constants
    except Differs as difference:
        source = difference.node.meta.get("source")
        return Reason(
            f"the model runs different operations at another size: {difference.args[0]}",
            source and str(source),
        )
    for node, _, here, there in constants:
        source = node.meta.get("source")
        return Reason(
            f"the number {here!r} is computed from it ({there!r} at another size)", source and str(source)
        )
    if not same_structure(trace.output, other.output):
        return Reason("the structure of the output, or a number in it, depends on it")
    for name, tensor in mine.constants.items():
        if name not in theirs.constants or not _equal(tensor, theirs.constants[name]):
            return Reason(
                f"a tensor of shape {tuple(tensor.shape)} depends on it, but the recorder cannot see how it was created"
            )
    return None


def tell_hidden_results(runs: Runs, trace: RecordedRun) -> None:
    """Note tensors of unknown origin that change with the inputs' numbers: results that the recorder missed."""
    mine = trace.recorder.tape
    if not mine.unknown_constants:
        return
    try:
        theirs = runs.record_with(
            [leaf.flatten().roll(1).view(leaf.shape) for leaf in runs.inputs], dry=False
        ).recorder.tape
    except (CaptureError, RuntimeError):
        return  # the model does not accept these numbers
    for name in mine.unknown_constants:
        tensor = mine.constants[name]
        if name not in theirs.constants or not _equal(tensor, theirs.constants[name]):
            text = (
                f"a tensor of shape {tuple(tensor.shape)} is kept: the recorder cannot see how it was created"
            )
            trace.recorder.report.add(Note("data", text))


def _equal(left: Tensor, right: Tensor) -> bool:
    if left is right or left.shape != right.shape or left.dtype != right.dtype:
        return left is right
    return left.layout is torch.strided and torch.equal(left.cpu().nan_to_num(), right.cpu().nan_to_num())


def _checks(trace: RecordedRun) -> list[fx.Node]:
    return [node for node in trace.graph.nodes if node.target is check_branch]


def _sizes_behind(check: fx.Node) -> list[Any]:
    """The sizes that a branch was computed from: two sizes of a tensor may have one remainder."""
    found, waiting = [], [check.args[0]]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, fx.Node):
            continue
        if node.target in (Tensor.size, Tensor.numel):
            found.append(node.meta.get("value"))
        else:
            waiting += node.args
    return found
