"""Recorded runs of one model on one example: once more where once is not enough."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import CaptureError, SparsebitError
from sparsebit.graph.capture.call.signature import CallSignature
from sparsebit.graph.capture.call.structure import Branch, Tree, flatten, leaves_of
from sparsebit.graph.capture.leaves import LeafModules
from sparsebit.graph.capture.modes import differing_constants, merge_modes
from sparsebit.graph.capture.recording.patching import announcing_capture, recording
from sparsebit.graph.capture.recording.recorder import (
    BelowRecorder,
    DataDependenceError,
    DataPolicy,
    Recorder,
)
from sparsebit.graph.capture.recording.tape import StaleRead
from sparsebit.graph.capture.report import CaptureReport, Note
from sparsebit.graph.capture.sizes.numbers import SizeFloat, SizeInt
from sparsebit.graph.capture.sizes.stand_ins import size_names
from sparsebit.graph.capture.snapshot import undisturbed
from sparsebit.graph.capture.source import source_of_error
from sparsebit.graph.value import tensors_in

_CHEAP = 5_000_000  # numbers computed in a run that is repeated without a thought
_SHORT = 2_000  # and nodes recorded in it


@dataclass
class Trace:
    """One recorded run."""

    recorder: Recorder
    output: Tree


class Runs:
    """A model, an example call of it, and how it has to be recorded."""

    def __init__(
        self,
        model: nn.Module,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        leaves: LeafModules,
        on_data: DataPolicy,
    ) -> None:
        self.model, self.leaf_modules, self.on_data = model, leaves, on_data
        self.signature, self.inputs = _example(model, args, kwargs)
        self._positional, self._keywords = len(args), frozenset(kwargs)
        named = reversed(list(model.named_modules(remove_duplicate=False)))
        self._paths = {id(module): name for name, module in named}  # the first name of a shared module
        self._announced = self._below = False
        self._names_replaced = False

    def record_best(self, report: CaptureReport) -> Trace:
        """Record; again in another way where the first recording was not good enough.

        A model that reads its data may have another way for graph capture (transformers skips masks that are all ones,
        but not while ``torch.compiler.is_exporting()``). Tensors out of nowhere are either Python state of the model,
        or come from work below the torch API, which a recording at that level shows. Where sizes were lost, more of the
        stand-ins of ``size_names`` may keep them, if the model does the same with them.
        """
        notes = list(report.notes)
        try:
            trace = self.record(report)
        except DataDependenceError as refusal:
            report.notes, self._announced = notes, True
            try:
                trace = self.record(report)
            except CaptureError:
                raise refusal from None
        if trace.recorder.tape.unknown_constants:
            report.notes, self._below = notes, True
            trace = self.record(report)
        if report.of_kind("size-fixed") and not self._below:
            trace = self._with_stand_ins(trace, report, notes)
        return trace

    def _with_stand_ins(self, trace: Trace, report: CaptureReport, notes: list[Note]) -> Trace:
        kept = CaptureReport(report.frontend, notes)
        self._names_replaced = True
        try:
            better = self.record(kept)
        except CaptureError:
            better = None
        if better is None or _computation(better) != _computation(trace):
            self._names_replaced = False  # the model minds them: ``type(k) is int``, ``dtype=float``
            return trace
        report.notes = kept.notes
        return better

    def record(self, report: CaptureReport) -> Trace:
        """Record one run; again for each line whose write in place turns out to be visible elsewhere."""
        in_place: frozenset[Hashable] = frozenset()
        while True:
            notes = CaptureReport(report.frontend, list(report.notes))
            try:
                trace = self._record_once(notes, in_place)
            except StaleRead as read:
                in_place |= {read.write}
                continue
            report.notes = notes.notes
            return trace

    def _record_once(self, report: CaptureReport, in_place: frozenset[Hashable]) -> Trace:
        recorder = Recorder(self.model, report, self.on_data, in_place)
        # outside of inference mode, whose tensors do not tell when they are written
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            undisturbed(self.model, self.inputs) as snapshot,
        ):
            try:
                inputs = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in self.inputs]
                result = self._run(recorder, inputs)
                for name, tensor in snapshot.reassigned():
                    recorder.tape.add_assignment(name, snapshot.original(name), tensor)
                for name in snapshot.carried(recorder.depends_on_data):
                    recorder.note("state", f"the model keeps {name!r} from call to call; the graph does not")
                flat, output = flatten(result, "output", _is_output)
                for size in _size_keys(output):
                    recorder.size_lost(size, "key of an output")
                recorder.close(flat)
            finally:
                recorder.closed = True
                recorder.writes.undo()
        return Trace(recorder, output)

    def _run(self, recorder: Recorder, inputs: list[Tensor]) -> Any:
        for name, tensor in zip(self._input_names(), inputs, strict=True):
            recorder.add_placeholder(name, tensor)
        first = next(self.model.parameters(), None)
        if not inputs and first is not None:
            recorder.tape.device, recorder.tape.device_owner = first.device, recorder.tape.node_of(first)
        args, kwargs = self.signature.rebuild_call(inputs, self._positional, self._keywords)
        with contextlib.ExitStack() as stack:
            stack.enter_context(recording(recorder, self._paths, self.leaf_modules))
            stack.enter_context(size_names(recorder, self.model, everything=self._names_replaced))
            if self._announced:
                stack.enter_context(announcing_capture())
            if self._below:
                stack.enter_context(BelowRecorder(recorder))
            stack.enter_context(recorder)
            result = self._call(args, kwargs)
        if recorder.refusal is not None:
            raise recorder.refusal  # the model caught it and went another way
        return result

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self.model(*args, **kwargs)
        except SparsebitError:
            raise
        except Exception as error:
            place = source_of_error(error)
            raise CaptureError(
                f"{type(self.model).__name__} raised {type(error).__name__} on the example inputs: {error}",
                where=str(place) if place else None,
                hint="check that model(*args, **kwargs) runs with the same inputs; if it does, keep the module around "
                "this line whole with capture(..., skip=['its.dotted.name'])",
            ) from error

    def _input_names(self) -> list[str]:
        """Names for the placeholders that generated code can use as they are."""
        parameters, names = set(self.signature.parameters.parameters), list[str]()
        for tree in self.signature.inputs.values():
            for leaf in leaves_of(tree):
                name = "".join(c if c.isalnum() else "_" for c in leaf.path)
                name = name if name.isidentifier() else f"input_{name}"
                if hasattr(builtins, name):  # torch.fx would rename it
                    name = f"{name}_1"
                while name in names or (name in parameters and name != leaf.path):
                    name += "_"
                names.append(name)
        return names

    def check_sizes(self, trace: Trace) -> None:
        """Record again with each dimension of the inputs twice as long, and tell which numbers should have followed.

        A size can turn into a plain number where Python leaves no trace: ``0.5 * x.size(0)``. Only for examples that
        run in no time; and a model that takes no other size has nothing to be told about. Only on the CPU: on a GPU
        a size that does not fit may end in a device assertion, which takes the whole process down.
        """
        probed = all(leaf.device.type == "cpu" and leaf.layout is torch.strided for leaf in self.inputs)
        tape = trace.recorder.tape
        if not self.inputs or not probed or tape.values_recorded() > _CHEAP or len(tape.graph.nodes) > _SHORT:
            return
        extents = dict.fromkeys(pair for leaf in self.inputs for pair in enumerate(leaf.shape))
        for dim, size in extents:
            other = self._record_longer(dim, size)
            if other is None:
                continue
            self._compare_parts(trace, other, dim)
            for node, here, there in differing_constants(
                trace.recorder.tape.graph, other.recorder.tape.graph
            ):
                text = f"{here!r} follows from dimension {dim} of the inputs (twice as long gives {there!r})"
                text += " but is fixed"
                trace.recorder.report.add(Note("size-fixed", text, node.meta.get("source")))

    def _compare_parts(self, trace: Trace, other: Trace, dim: int) -> None:
        """Tell what a recording with longer inputs took apart into more pieces, or made out of sight of us."""
        add = trace.recorder.report.add
        for (count, source), (more, _) in zip(_parts(trace), _parts(other), strict=False):
            if count != more:
                add(
                    Note(
                        "size-fixed",
                        f"a tensor is taken apart into {count} parts whatever dimension {dim}",
                        source,
                    )
                )
        longer = other.recorder.tape.constants
        for name, tensor in trace.recorder.tape.constants.items():
            same = name in longer and (tensor is longer[name] or torch.equal(tensor, longer[name]))
            if not same:
                text = f"a tensor of shape {tuple(tensor.shape)} was made out of sight while the model ran, and is kept"
                add(Note("data", text))

    def _record_longer(self, dim: int, size: int) -> Trace | None:
        inputs = self.inputs
        self.inputs = [
            torch.cat([leaf, leaf], dim) if size and leaf.dim() > dim and leaf.size(dim) == size else leaf
            for leaf in inputs
        ]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.record(CaptureReport())
        except CaptureError:
            return None
        finally:
            self.inputs = inputs

    def merge_other_mode(self, trace: Trace) -> str | None:
        """Record with every mode flipped and merge what that changes; the reason if the two cannot be one graph.

        Leaves stay in their mode: they are one node in either, and a batch norm may refuse a small example.
        """
        insides = [module for module in self.model.modules() if id(module) not in self.leaf_modules.whole]
        before = [module.training for module in insides]
        modes = {name: module.training for name, module in self.model.named_modules(remove_duplicate=False)}
        notes = CaptureReport()
        policy, self.on_data = self.on_data, "specialise"
        try:
            for module in insides:
                module.training = not module.training
            other = self.record(notes)
        except CaptureError as error:
            return str(error.where or error.message)
        finally:
            self.on_data = policy
            for module, training in zip(insides, before, strict=True):
                module.training = training
        for note in notes.of_kind("random", "data"):
            trace.recorder.report.add(Note("mode", note.text, note.source))
        return merge_modes(trace.recorder.tape.graph, other.recorder.tape.graph, modes.__getitem__)


def _example(
    model: nn.Module, args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[CallSignature, list[Tensor]]:
    parameters = inspect.signature(model.forward)
    try:
        return CallSignature.of_call(parameters, args, kwargs)
    except TypeError as error:
        raise CaptureError(
            f"the example inputs do not fit {type(model).__name__}.forward: {error}",
            expected=f"forward{parameters}",
            got=f"{len(args)} positional and keywords {sorted(kwargs) or 'none'}",
            hint="pass positional inputs as a tuple and keyword inputs as a dict: capture(model, (x,), {'mask': m})",
        ) from error


def _parts(trace: Trace) -> list[tuple[int, Any]]:
    """How many parts each tensor was taken apart into, and where."""
    apart = (torch.unbind, torch.split, torch.chunk, torch.tensor_split)
    nodes = [node for node in trace.recorder.tape.graph.nodes if node.target in apart]
    return [(len(node.meta["value"]), node.meta["source"]) for node in nodes]


def _computation(trace: Trace) -> list[tuple[str, Any]]:
    """What a recording does to tensors, apart from the arithmetic on sizes."""
    calls = (node for node in trace.recorder.tape.graph.nodes if node.op in ("call_function", "call_module"))
    return [(node.op, node.target) for node in calls if any(True for _ in tensors_in(node.meta.get("value")))]


def _is_output(value: Any) -> bool:
    return isinstance(value, Tensor | SizeInt | SizeFloat)


def _size_keys(tree: Tree) -> list[SizeInt | SizeFloat]:
    if not isinstance(tree, Branch):
        return []
    own = [key for key in tree.keys if isinstance(key, SizeInt | SizeFloat)]
    return own + [key for child in tree.children for key in _size_keys(child)]
