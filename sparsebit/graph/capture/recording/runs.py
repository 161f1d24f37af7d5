"""Recorded runs of one model on one example, repeated if one run is not enough."""

from __future__ import annotations

import builtins
import contextlib
import inspect
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from sparsebit.errors import CaptureError, SparsebitError
from sparsebit.graph.capture.call.signature import CallSignature, is_tensor
from sparsebit.graph.capture.call.structure import Branch, Tree, flatten
from sparsebit.graph.capture.leaves import LeafModules
from sparsebit.graph.capture.modes import Comparison, Differs, compare, flipped_modes
from sparsebit.graph.capture.recording.below_recorder import BelowRecorder
from sparsebit.graph.capture.recording.data_reads import DataDependenceError, DataPolicy
from sparsebit.graph.capture.recording.names import Names
from sparsebit.graph.capture.recording.patching import announcing_capture, recording
from sparsebit.graph.capture.recording.recorder import Recorder
from sparsebit.graph.capture.recording.size_len import following_len
from sparsebit.graph.capture.recording.tape import StaleRead
from sparsebit.graph.capture.report import CaptureReport, Note
from sparsebit.graph.capture.sizes.numbers import SizeFloat, SizeInt
from sparsebit.graph.capture.snapshot import Snapshot, undisturbed
from sparsebit.graph.capture.source import source_of_error
from sparsebit.graph.copies import copy_module
from sparsebit.graph.exclusive import in_this_thread, without_warnings


@dataclass
class RecordedRun:
    """One recorded run."""

    recorder: Recorder
    output: Tree

    @property
    def graph(self) -> fx.Graph:
        """The recorded program."""
        return self.recorder.tape.graph


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
        self._names, self._snapshot = Names(model), Snapshot(model)
        self._announced = self.below = False
        self._copy: Runs | None = None

    def record_best(self, report: CaptureReport) -> RecordedRun:
        """Record, and again in another way if the first recording is not good enough.

        A model that reads its data may have another way for graph capture (transformers skips masks that are all ones,
        but not while ``torch.compiler.is_exporting()``). Tensors of unknown origin are Python state of the model,
        or come from work below the torch API, which a recording at that level shows.
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
            report.notes, self.below = notes, True
            trace = self.record(report)
        return trace

    def record(self, report: CaptureReport, *, dry: bool = False) -> RecordedRun:
        """Record one run, and again for each line whose in-place write turns out to be visible elsewhere.

        ``dry`` skips the work of costly layers, if the recording is only compared with another one.
        """
        in_place: frozenset[Hashable] = frozenset()
        while True:
            notes = CaptureReport(report.frontend, list(report.notes))
            try:
                trace = self._record_once(
                    notes, in_place, dry and self.on_data == "refuse" and not self.below
                )
            except StaleRead as read:
                in_place |= {read.write}
                continue
            report.notes = notes.notes
            return trace

    def _record_once(self, report: CaptureReport, in_place: frozenset[Hashable], dry: bool) -> RecordedRun:
        recorder = Recorder(self._names, report, self.on_data, in_place, dry=dry)
        snapshot = self._snapshot
        # outside of inference mode, whose tensors do not tell when they are written
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            undisturbed(self.model, self.inputs, snapshot),
        ):
            try:
                inputs = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in self.inputs]
                result = self._run(recorder, inputs)
                for name, tensor in snapshot.reassigned():
                    recorder.tape.add_assignment(name, snapshot.original(name), tensor)
                for name in snapshot.carried(recorder.depends_on_data):
                    recorder.note("state", f"the model keeps {name!r} from call to call; the graph does not")
                flat, output = flatten(
                    result, "output", lambda value: isinstance(value, Tensor | SizeInt | SizeFloat)
                )
                for size in _size_keys(output):
                    recorder.size_lost(size, "key of an output")
                recorder.close(flat)
            finally:
                recorder.closed = True
                recorder.writes.undo()
        return RecordedRun(recorder, output)

    def _run(self, recorder: Recorder, inputs: list[Tensor]) -> Any:
        for name, tensor in zip(self._input_names(), inputs, strict=True):
            recorder.add_placeholder(name, tensor)
        first = next(self.model.parameters(), None)
        if not inputs and first is not None:
            recorder.tape.device, recorder.tape.device_owner = first.device, recorder.tape.node_of(first)
        args, kwargs = self.signature.rebuild_call(inputs, self._positional, self._keywords)
        with contextlib.ExitStack() as stack:
            stack.enter_context(recording(recorder, self.leaf_modules))
            ours = in_this_thread()
            stack.enter_context(following_len(self.model, lambda x: recorder.length(x) if ours() else None))
            if any(type(module).__name__ == "OptimizedModule" for module in self.model.modules()):
                # compiled parts run uncompiled, so that they can be recorded
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            if self._announced:
                stack.enter_context(announcing_capture())
            if self.below:
                stack.enter_context(BelowRecorder(recorder))
            stack.enter_context(recorder)
            result = self._call(args, kwargs)
        if recorder.refusal is not None:
            raise recorder.refusal  # the model caught it and took another branch
        return result

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            return self.model(*args, **kwargs)
        except SparsebitError:
            raise
        except Exception as error:
            place = source_of_error(error)
            hint = (
                "check that model(*args, **kwargs) runs with the same inputs; if it does, keep the module around "
                "this line as one node: capture(..., skip=['its.dotted.name']), SKIP_TRACE_MODULES in a config"
            )
            if any(parameter.is_meta for parameter in self.model.parameters()):
                hint = "the model is on the meta device, without values; build it on a real device and load its weights"
            raise CaptureError(
                f"{type(self.model).__name__} raised {type(error).__name__} on the example inputs: "
                f"{str(error).strip().partition(chr(10))[0]}",
                where=str(place) if place else None,
                got=", ".join(f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}" for x in self.inputs),
                hint=hint,
            ) from error

    def _input_names(self) -> list[str]:
        """Names for the placeholders that generated code can use as they are."""
        parameters, names = set(self.signature.parameters.parameters), list[str]()
        for leaf in self.signature.input_leaves():
            name = "".join(c if c.isalnum() else "_" for c in leaf.path)
            name = name if name.isidentifier() else f"input_{name}"
            if hasattr(builtins, name):  # torch.fx would rename it
                name = f"{name}_1"
            while name in names or (name in parameters and name != leaf.path):
                name += "_"
            names.append(name)
        return names

    def run_plainly(self, model: nn.Module) -> list[Tensor]:
        """The tensors that a module returns for the example; the module is not recorded and not changed."""
        with torch.no_grad(), undisturbed(self.model, self.inputs, self._snapshot):
            inputs = [leaf.detach().clone() for leaf in self.inputs]
            args, kwargs = self.signature.rebuild_call(inputs, self._positional, self._keywords)
            found, _ = flatten(model(*args, **kwargs), "output", is_tensor)
        return found

    def record_with(self, inputs: list[Tensor], *, dry: bool = True) -> RecordedRun:
        """Record the same call with other tensors; without warnings.

        On a GPU a size that does not fit may end in a device assertion, which ends the process: there a
        copy of the model on the CPU is recorded.
        """
        here = all(leaf.device.type in ("cpu", "meta") for leaf in self.inputs)
        runs = self if here else self._on_cpu()
        kept, runs.inputs = runs.inputs, inputs if here else [leaf.to("cpu") for leaf in inputs]
        try:
            with without_warnings():
                return runs.record(CaptureReport(), dry=dry)
        finally:
            runs.inputs = kept

    def _on_cpu(self) -> Runs:
        if self._copy is None:
            try:
                model = copy_module(self.model).to("cpu")
            except Exception as error:  # a module may hold objects that cannot be copied
                raise CaptureError(
                    f"other sizes are tried on a copy of the model on the CPU, and it cannot be copied: {error}",
                    hint="capture the model on the CPU and move the graph: capture(model, ...).cuda()",
                ) from error
            pairs = zip(self.model.modules(), model.modules(), strict=True)
            ids = {id(twin) for module, twin in pairs if id(module) in self.leaf_modules.ids}
            hooked = {name: model.get_submodule(name) for name in self.leaf_modules.hooked}
            leaves = LeafModules(ids, hooked)
            args, kwargs = self.signature.rebuild_call(
                [leaf.to("cpu") for leaf in self.inputs], self._positional, self._keywords
            )
            self._copy = Runs(model, args, kwargs, leaves, self.on_data)
            self._copy._announced, self._copy.below = self._announced, self.below
        return self._copy

    def compare_modes(self, trace: RecordedRun) -> Comparison | str:
        """Record with every mode flipped and compare; returns the reason if the two cannot be one graph.

        Leaves stay in their mode: they are one node in either, and a batch norm may refuse a small example.
        """
        insides = [module for module in self.model.modules() if id(module) not in self.leaf_modules.ids]
        attempts: list[tuple[DataPolicy, bool]] = [("refuse", True), ("specialise", False)]
        for policy, dry in attempts:  # if the model reads its data, the numbers matter
            notes, kept = CaptureReport(), self.on_data
            self.on_data = policy
            try:
                with flipped_modes(insides):
                    comparison = compare(trace.graph, self.record(notes, dry=dry).graph)
                break
            except (CaptureError, Differs) as error:
                reason = str(getattr(error, "where", None) or getattr(error, "message", error))
            finally:
                self.on_data = kept
        else:
            return reason
        for note in notes.of_kind("random", "data"):
            trace.recorder.report.add(Note("mode", note.text, note.source))
        return comparison


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
            hint="pass positional inputs as a tuple, keyword inputs as a dict; a dict that is itself one argument goes "
            "in a tuple",
        ) from error


def _size_keys(tree: Tree) -> list[SizeInt | SizeFloat]:
    if not isinstance(tree, Branch):
        return []
    own = [key for key in tree.keys if isinstance(key, SizeInt | SizeFloat)]
    return own + [key for child in tree.children for key in _size_keys(child)]
