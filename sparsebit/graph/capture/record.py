"""The default front-end: run the model once on example inputs and keep what it did."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import CaptureError, SparsebitError
from sparsebit.graph.capture.leaves import LeafModules, find_leaves, without_hooks
from sparsebit.graph.capture.mode import differing_constants, merge_modes
from sparsebit.graph.capture.module import CapturedModule, build_shell, in_place_when_private, uninitialized
from sparsebit.graph.capture.patching import announcing_capture, recording
from sparsebit.graph.capture.placement import drop_dead_functions, place_mode_constants
from sparsebit.graph.capture.recorder import BelowRecorder, DataDependenceError, DataPolicy, Recorder
from sparsebit.graph.capture.report import CaptureReport, Note
from sparsebit.graph.capture.signature import CallSignature, CapturedCodeGen
from sparsebit.graph.capture.sizes import SizeFloat, SizeInt
from sparsebit.graph.capture.snapshot import overridden_modes, undisturbed
from sparsebit.graph.capture.source import source_of_error
from sparsebit.graph.capture.structure import Tree, flatten, leaves_of
from sparsebit.graph.capture.tape import StaleRead

_CHEAP = 5_000_000  # numbers computed in a run that is repeated without a thought


@dataclass
class Trace:
    """One recorded run."""

    recorder: Recorder
    output: Tree


def record(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    skip: Sequence[str] = (),
    on_data: DataPolicy = "refuse",
) -> CapturedModule:
    """Capture by recording one run under the mode the model is in, and checking a second one in the other mode.

    The second run tells what depends on ``training``: constants that differ become ``ModeConstant``; a different
    structure makes the graph refuse the switch. The model, its buffers and the random state are left as they were.
    """
    lazy = uninitialized(model)
    if lazy is not None:
        raise CaptureError(
            f"parameter {lazy!r} has no shape yet",
            hint="run the model once, so that its lazy modules get their weights",
        )
    signature, leaves = _example(model, args, kwargs)
    paths = {id(module): name for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
    report = CaptureReport(frontend="record")
    leaf_modules = find_leaves(model, skip)
    for name in leaf_modules.with_hooks:
        text = f"hooks on {name or 'the model'}: what they do to tensors is in the graph, the rest is not repeated"
        report.add(Note("hooks", text))
    run = _Run(model, signature, leaves, paths, leaf_modules, on_data, len(args), frozenset(kwargs))
    trace = run.trace_best(report)
    run.check_sizes(trace)
    conflict = run.compare_modes(trace)
    signature.output = trace.output
    return _assemble(model, trace, signature, leaf_modules, report, conflict)


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


class _Run:
    """Everything that stays the same from one recorded run to the next."""

    def __init__(
        self,
        model: nn.Module,
        signature: CallSignature,
        leaves: list[Tensor],
        paths: dict[int, str],
        leaf_modules: LeafModules,
        on_data: DataPolicy,
        positional: int,
        keywords: frozenset[str],
    ) -> None:
        self.model, self.signature, self.leaves = model, signature, leaves
        self.paths, self.leaf_modules, self.on_data = paths, leaf_modules, on_data
        self.positional, self.keywords = positional, keywords
        self.announced = self.below = False

    def trace_best(self, report: CaptureReport) -> Trace:
        """Record; again in another way where the first recording was not good enough.

        A model that reads its data may have another way for graph capture (transformers skips masks that are all ones,
        but not while ``torch.compiler.is_exporting()``). Tensors out of nowhere are either Python state of the model,
        or come from work below the torch API, which a recording at that level shows.
        """
        notes = list(report.notes)
        try:
            trace = self.trace(report)
        except CaptureError as refusal:
            if not isinstance(refusal, DataDependenceError):
                raise
            report.notes, self.announced = notes, True
            try:
                trace = self.trace(report)
            except CaptureError:
                raise refusal from None
        if trace.recorder.tape.unknown_constants:
            report.notes, self.below = notes, True
            trace = self.trace(report)
        return trace

    def trace(self, report: CaptureReport) -> Trace:
        """Record one run; again for each write in place that turns out to be visible elsewhere."""
        in_place: frozenset[int] = frozenset()
        while True:
            notes = CaptureReport(report.frontend, list(report.notes))
            try:
                trace = self._trace_once(notes, in_place)
            except StaleRead as read:
                in_place |= {read.write}
                continue
            report.notes = notes.notes
            return trace

    def _trace_once(self, report: CaptureReport, in_place: frozenset[int]) -> Trace:
        recorder = Recorder(self.model, report, self.on_data, in_place)
        inputs = [leaf.detach().clone() for leaf in self.leaves]
        for name, tensor in zip(self._input_names(), inputs, strict=True):
            recorder.add_placeholder(name, tensor)
        if not inputs:
            first = next(self.model.parameters(), None)
            if first is not None:
                tape = recorder.tape
                tape.device, tape.device_owner = first.device, tape.node_of(first)
        args, kwargs = self.signature.rebuild_call(inputs, self.positional, self.keywords)
        try:
            with undisturbed(self.model, inputs) as snapshot, torch.enable_grad():
                result = self._run(recorder, args, kwargs)
                for name, tensor in snapshot.reassigned():
                    recorder.tape.add_assignment(name, snapshot.original(name), tensor)
                flat, output = flatten(
                    result, "output", lambda item: isinstance(item, Tensor | SizeInt | SizeFloat)
                )
                recorder.close(flat)
        finally:
            recorder.writes.undo()
        return Trace(recorder, output)

    def _run(self, recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with contextlib.ExitStack() as stack:
            stack.enter_context(recording(recorder, self.model, self.paths, self.leaf_modules))
            if self.announced:
                stack.enter_context(announcing_capture())
            if self.below:
                stack.enter_context(BelowRecorder(recorder))
            stack.enter_context(recorder)
            return self._call(args, kwargs)

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
        names: list[str] = []
        for tree in self.signature.inputs.values():
            for leaf in leaves_of(tree):
                name = "".join(c if c.isalnum() else "_" for c in leaf.path)
                name = name if name.isidentifier() else f"input_{name}"
                while name in names:
                    name += "_"
                names.append(name)
        return names

    def check_sizes(self, trace: Trace) -> None:
        """Record again with each dimension of the inputs one longer, and tell which numbers should have followed.

        A size can turn into a plain number where Python leaves no trace: ``0.5 * x.size(0)``. Only for examples that
        run in no time; and a model that takes no other size has nothing to be told about. Only on the CPU: on a GPU
        a size that does not fit may end in a device assertion, which takes the whole process down.
        """
        if not self.leaves or any(leaf.device.type != "cpu" for leaf in self.leaves):
            return
        if trace.recorder.tape.values_recorded() > _CHEAP:
            return
        for dim, size in enumerate(self.leaves[0].shape):
            other = self._trace_longer(dim, size)
            found = (
                differing_constants(trace.recorder.tape.graph, other.recorder.tape.graph)
                if other is not None
                else None
            )
            for node, here, there in found or ():
                text = f"{here!r} follows from dimension {dim} of the inputs (one longer gives {there!r}) but is fixed"
                trace.recorder.report.add(Note("size-fixed", text, node.meta.get("source")))

    def _trace_longer(self, dim: int, size: int) -> Trace | None:
        leaves = self.leaves
        fits = [leaf.dim() > dim and leaf.size(dim) == size for leaf in leaves]
        self.leaves = [
            torch.cat([leaf, leaf.narrow(dim, size - 1, 1)], dim) if size and fit else leaf
            for leaf, fit in zip(leaves, fits, strict=True)
        ]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.trace(CaptureReport())
        except CaptureError:
            return None
        finally:
            self.leaves = leaves

    def compare_modes(self, trace: Trace) -> str | None:
        """Record the other mode and merge what it changes; the reason if the two cannot be one graph."""
        mode = self.model.training
        insides = [module for module in self.model.modules() if id(module) not in self.leaf_modules.whole]
        before = [module.training for module in insides]
        notes = CaptureReport()
        policy, self.on_data = self.on_data, "specialise"
        try:
            for module in insides:
                module.training = not mode
            other = self.trace(notes)
        except CaptureError as error:
            return str(error.where or error.message)
        finally:
            self.on_data = policy
            for module, training in zip(insides, before, strict=True):
                module.training = training
        for note in notes.of_kind("random", "data"):
            trace.recorder.report.add(Note("mode", note.text, note.source))
        return merge_modes(trace.recorder.tape.graph, other.recorder.tape.graph, mode)


def _assemble(
    model: nn.Module,
    trace: Trace,
    signature: CallSignature,
    leaf_modules: LeafModules,
    report: CaptureReport,
    conflict: str | None,
) -> CapturedModule:
    graph, recorder = trace.recorder.tape.graph, trace.recorder
    replaced = {path: without_hooks(model.get_submodule(path)) for path in leaf_modules.hooked}
    for path, functional in recorder.functional_modules.items():
        if functional:
            replaced[path] = in_place_when_private(replaced.get(path, model.get_submodule(path)))
    for node in graph.nodes:
        if node.op == "call_module" and node.target in replaced:
            node.meta.pop("mutates", None)
    drop_dead_functions(graph, keep_random=model.training)
    graph.set_codegen(CapturedCodeGen(signature))
    shell = build_shell(model, leaf_modules.whole, replaced)
    for name, tensor in recorder.tape.constants.items():
        shell.register_buffer(name, tensor.detach(), persistent=False)
    place_mode_constants(shell, graph)
    module = CapturedModule(shell, graph, type(model).__name__)
    module.capture_report, module._mode_conflict = report, conflict
    module._mode_flags = overridden_modes(model)
    return module
