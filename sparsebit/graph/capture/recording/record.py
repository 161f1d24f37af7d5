"""The default front-end: run the model once on example inputs and keep what it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from sparsebit.graph.capture.call.signature import CapturedCodeGen
from sparsebit.graph.capture.leaves import find_leaves, is_stochastic_leaf, without_hooks
from sparsebit.graph.capture.module import CapturedModule, build_shell, in_place_when_private
from sparsebit.graph.capture.placement import drop_dead_functions, place_mode_constants
from sparsebit.graph.capture.recording.recorder import DataPolicy
from sparsebit.graph.capture.recording.runs import Runs, Trace
from sparsebit.graph.capture.report import CaptureReport, Note
from sparsebit.graph.capture.snapshot import overridden_modes


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
    structure makes the graph refuse the switch. If it is for a DropPath-like module, that one stays whole instead.
    The model, its buffers and the random state are left as they were.
    """
    report = CaptureReport(frontend="record")
    # a module that says it drops is taken at its word; any other is opened first, to see whether it has to stay whole
    drops = any(is_stochastic_leaf(m) and "drop" in type(m).__name__.lower() for m in model.modules())
    runs = Runs(model, args, kwargs, find_leaves(model, skip, stochastic=drops), on_data)
    for name in runs.leaf_modules.with_hooks:
        text = f"hooks on {name or 'the model'}: what they do to tensors is in the graph, the rest is not repeated"
        report.add(Note("hooks", text))
    notes = list(report.notes)
    trace = runs.record_best(report)
    conflict = runs.merge_other_mode(trace)
    whole = find_leaves(model, skip)
    if conflict is not None and whole.whole != runs.leaf_modules.whole:
        retold = CaptureReport(report.frontend, notes)
        runs.leaf_modules, opened = whole, runs.leaf_modules
        retrace = runs.record_best(retold)
        if runs.merge_other_mode(retrace) is None:
            trace, report, conflict = retrace, retold, None
        else:
            runs.leaf_modules = opened
    runs.check_sizes(trace)
    return _assemble(runs, trace, report, conflict)


def _assemble(runs: Runs, trace: Trace, report: CaptureReport, conflict: str | None) -> CapturedModule:
    model, leaf_modules = runs.model, runs.leaf_modules
    graph, recorder = trace.recorder.tape.graph, trace.recorder
    replaced = {path: without_hooks(model.get_submodule(path)) for path in leaf_modules.hooked}
    for path, functional in recorder.functional_modules.items():
        if functional:
            replaced[path] = in_place_when_private(replaced.get(path, model.get_submodule(path)))
    for node in graph.nodes:
        if node.op == "call_module" and node.target in replaced:
            node.meta.pop("mutates", None)
    drop_dead_functions(graph, keep_random=model.training)
    runs.signature.output = trace.output
    graph.set_codegen(CapturedCodeGen(runs.signature))
    shell = build_shell(model, leaf_modules.whole, replaced)
    for name, tensor in recorder.tape.constants.items():
        shell.register_buffer(name, tensor.detach(), persistent=False)
    place_mode_constants(shell, graph)
    module = CapturedModule(shell, graph, type(model).__name__)
    module.capture_report, module._mode_conflict = report, conflict
    module._mode_flags = overridden_modes(model)
    return module
