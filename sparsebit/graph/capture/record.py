"""The default front-end: run the model once on example inputs and keep what it did."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import CaptureError, SparsebitError
from sparsebit.graph.capture.leaves import has_hooks, is_stochastic_leaf, is_torch_leaf, matches_any, torch_base
from sparsebit.graph.capture.mode import merge_modes
from sparsebit.graph.capture.module import CapturedModule, build_shell, uninitialized
from sparsebit.graph.capture.patching import announcing_capture, recording
from sparsebit.graph.capture.placement import drop_dead_functions, place_mode_constants
from sparsebit.graph.capture.recorder import BelowRecorder, DataDependenceError, DataPolicy, Recorder, StaleRead
from sparsebit.graph.capture.report import CaptureReport, Note
from sparsebit.graph.capture.signature import CallSignature, CapturedCodeGen
from sparsebit.graph.capture.sizes import SizeFloat, SizeInt
from sparsebit.graph.capture.source import source_of_error
from sparsebit.graph.capture.structure import Tree, flatten, leaves_of
from sparsebit.graph.effects import assign


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
            f"parameter {lazy!r} has no shape yet", hint="run the model once, so that its lazy modules get their weights"
        )
    signature, leaves = _example(model, args, kwargs)
    paths = {id(module): name for name, module in reversed(list(model.named_modules(remove_duplicate=False)))}
    report = CaptureReport(frontend="record")
    opaque = _leaf_modules(model, skip, report)
    run = _Run(model, signature, leaves, paths, opaque, on_data, len(args), frozenset(kwargs))
    trace = run.trace_best(report)
    conflict = run.compare_modes(trace)
    signature.output = trace.output
    return _assemble(model, trace, signature, opaque, report, conflict)


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


def _leaf_modules(model: nn.Module, skip: Sequence[str], report: CaptureReport) -> set[int]:
    unmatched = set(skip)
    opaque = set()
    for name, module in model.named_modules(remove_duplicate=False):
        matched = [pattern for pattern in skip if name and matches_any(name, [pattern])]
        unmatched -= set(matched)
        if name and (matched or is_torch_leaf(module) or is_stochastic_leaf(module) or _is_scripted(module)):
            opaque.add(id(module))
        elif torch_base(type(module)) is not None and has_hooks(module) and _foreign_hooks(module):
            text = f"hooks on {name!r}: their tensor operations are in the graph, what else they do is not repeated"
            report.add(Note("hooks", text))
    if unmatched:
        raise CaptureError(
            f"skip pattern {sorted(unmatched)[0]!r} matches no module",
            expected="fnmatch patterns on dotted module names, such as 'encoder.layer.*'",
            hint="list the names with [name for name, _ in model.named_modules()]",
        )
    return opaque


def _is_scripted(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule)


def _foreign_hooks(module: nn.Module) -> bool:
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    return any(not type(hook).__module__.startswith("torch.") for hook in hooks)


class _Run:
    """Everything that stays the same from one recorded run to the next."""

    def __init__(
        self,
        model: nn.Module,
        signature: CallSignature,
        leaves: list[Tensor],
        paths: dict[int, str],
        opaque: set[int],
        on_data: DataPolicy,
        positional: int,
        keywords: frozenset[str],
    ) -> None:
        self.model, self.signature, self.leaves = model, signature, leaves
        self.paths, self.opaque, self.on_data = paths, opaque, on_data
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
        if trace.recorder.unknown_constants:
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
                recorder.device, recorder.device_owner = first.device, recorder.node_of(first)
        args, kwargs = self.signature.rebuild_call(inputs, self.positional, self.keywords)
        with _undisturbed(self.model, inputs) as buffers, torch.enable_grad():
            with contextlib.ExitStack() as stack:
                stack.enter_context(recording(recorder, self.model, self.paths, self.opaque))
                if self.announced:
                    stack.enter_context(announcing_capture())
                if self.below:
                    stack.enter_context(BelowRecorder(recorder))
                stack.enter_context(recorder)
                result = self._call(args, kwargs)
            for name, tensor in buffers.reassigned():
                value = recorder.argument(tensor)
                target = recorder.graph.call_function(assign, (recorder.node_of(buffers.original(name)), value))
                target.meta.update(value=value.meta.get("value"), module_path=name.rpartition(".")[0], source=None)
            flat, output = flatten(result, "output", lambda item: isinstance(item, Tensor | SizeInt | SizeFloat))
            recorder.add_output(flat)
        return Trace(recorder, output)

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
                hint="check that model(*args, **kwargs) runs with the same inputs; if it does, keep the module around this "
                "line whole with capture(..., skip=['its.dotted.name'])",
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

    def compare_modes(self, trace: Trace) -> str | None:
        """Record the other mode and merge what it changes; the reason if the two cannot be one graph."""
        mode = self.model.training
        insides = [module for module in self.model.modules() if id(module) not in self.opaque]
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
        return merge_modes(trace.recorder.graph, other.recorder.graph, mode)


class _Buffers:
    """The model's buffers before a run, to see what was replaced and to put everything back."""

    def __init__(self, model: nn.Module) -> None:
        self._before: dict[str, tuple[nn.Module, str, Tensor, Tensor, int]] = {}
        for path, module in model.named_modules():
            for key, tensor in module._buffers.items():
                if tensor is not None:
                    name = f"{path}.{key}" if path else key
                    self._before[name] = (module, key, tensor, tensor.detach().clone(), tensor._version)

    def reassigned(self) -> Iterator[tuple[str, Tensor]]:
        for name, (module, key, tensor, _, _) in self._before.items():
            now = module._buffers.get(key)
            if now is not None and now is not tensor:
                yield name, now

    def original(self, name: str) -> Tensor:
        return self._before[name][2]

    def restore(self) -> None:
        for module, key, tensor, saved, version in self._before.values():
            module._buffers[key] = tensor
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(saved)


@contextlib.contextmanager
def _undisturbed(model: nn.Module, inputs: list[Tensor]) -> Iterator[_Buffers]:
    """Put buffers and random state back after a run."""
    devices = sorted({t.device.index or 0 for t in inputs if t.device.type == "cuda"})
    buffers = _Buffers(model)
    with torch.random.fork_rng(devices):
        try:
            yield buffers
        finally:
            buffers.restore()


def _assemble(
    model: nn.Module,
    trace: Trace,
    signature: CallSignature,
    opaque: set[int],
    report: CaptureReport,
    conflict: str | None,
) -> CapturedModule:
    graph, recorder = trace.recorder.graph, trace.recorder
    replaced: dict[str, nn.Module] = {}
    for path, functional in recorder.functional_modules.items():
        if functional:
            module = copy.copy(model.get_submodule(path))
            module.inplace = False  # type: ignore[assignment]
            replaced[path] = module
    for node in graph.nodes:
        if node.op == "call_module" and node.target in replaced:
            node.meta.pop("mutates", None)
    drop_dead_functions(graph)
    graph.set_codegen(CapturedCodeGen(signature))
    shell = build_shell(model, opaque, replaced)
    for name, tensor in recorder.constants.items():
        shell.register_buffer(name, tensor.detach(), persistent=False)
    place_mode_constants(shell, graph)
    module = CapturedModule(shell, graph, type(model).__name__)
    module.capture_report, module._mode_conflict = report, conflict
    return module
