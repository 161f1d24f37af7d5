"""The default front-end: run the model once on example inputs and keep what it did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.signature import CallSignature
from sparsebit.graph.capture.leaves import find_leaves, is_stochastic_leaf, without_hooks
from sparsebit.graph.capture.modes import Comparison, follow_mode
from sparsebit.graph.capture.module import (
    CapturedModule,
    build_shell,
    in_place_when_private,
    inherited_conflict,
)
from sparsebit.graph.capture.placement import assemble
from sparsebit.graph.capture.recording.data_reads import DataPolicy
from sparsebit.graph.capture.recording.prove_sizes import SizeProof, is_same_program, tell_hidden_results
from sparsebit.graph.capture.recording.runs import RecordedRun, Runs
from sparsebit.graph.capture.report import CaptureReport, Note
from sparsebit.graph.capture.snapshot import overridden_modes, training_flags


def record(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    *,
    skip: Sequence[str] = (),
    on_data: DataPolicy = "refuse",
) -> CapturedModule:
    """Capture by recording one run under the mode the model is in, and checking a second one in the other mode.

    The second run shows what depends on ``training``: constants that differ become ``ModeConstant``; a different
    structure makes the graph refuse the switch. If a DropPath-like module causes it, that one stays one node instead.
    The model, its buffers and the random state are left as they were.
    """
    report = CaptureReport(frontend="record")
    # a module called "drop" stays one node; any other is opened first, to see whether it has to stay one node
    drops = any(is_stochastic_leaf(m) and "drop" in type(m).__name__.lower() for m in model.modules())
    runs = Runs(model, args, kwargs, find_leaves(model, skip, stochastic=drops), on_data)
    for name in runs.leaf_modules.with_hooks:
        text = f"hooks on {name or 'the model'}: the graph contains what they do to tensors, but no other effects"
        report.add(Note("hooks", text))
    notes = list(report.notes)
    trace, comparison, report = _record_both_modes(runs, skip, report)
    proof = SizeProof(runs, trace)
    if not proof.followed and not is_same_program(trace, runs.record(CaptureReport(), dry=True)):
        # the model caches values computed from sizes, and uses them in later calls: these calls count
        trace, comparison, report = _record_both_modes(runs, skip, CaptureReport(report.frontend, notes))
        proof = SizeProof(runs, trace)
    tell_hidden_results(runs, trace)
    proof.drop_settled_branches()
    conflict = comparison if isinstance(comparison, str) else inherited_conflict(model)
    if not isinstance(comparison, str):
        follow_mode(trace.graph, comparison, training_flags(model).__getitem__)
    runs.signature.output = trace.output
    line = trace.recorder.reads_dtype
    signature = runs.signature.with_limits(proof.sizes(), line and str(line))
    captured = _assemble(runs, trace, signature, report, conflict)
    if runs.below:
        _require_equal(runs, captured)
    return captured


def _require_equal(runs: Runs, captured: CapturedModule) -> None:
    """Raise an error if a recording made below the torch API differs from the model: some work is not visible there."""
    model, ours = runs.run_plainly(runs.model), runs.run_plainly(captured)
    same = all(
        a.shape == b.shape and torch.allclose(a, b, equal_nan=True) for a, b in zip(model, ours, strict=True)
    )
    if not same:
        raise CaptureError(
            f"{type(runs.model).__name__} does work that the recorder cannot see (torch.vmap, torch.func or C++ code)",
            hint="keep the module that does it as one node: skip=['its.dotted.name'] in capture, SKIP_TRACE_MODULES "
            "in a config",
        )


def _record_both_modes(
    runs: Runs, skip: Sequence[str], report: CaptureReport
) -> tuple[RecordedRun, Comparison | str, CaptureReport]:
    """A recording, the differences in the other mode (or why there cannot be one graph), and the notes made."""
    notes = list(report.notes)
    trace = runs.record_best(report)
    comparison = runs.compare_modes(trace)
    all_leaves, opened = find_leaves(runs.model, skip), runs.leaf_modules
    if not isinstance(comparison, str) or all_leaves.ids == opened.ids:
        return trace, comparison, report
    retold = CaptureReport(report.frontend, notes)
    runs.leaf_modules = all_leaves
    retrace = runs.record_best(retold)
    again = runs.compare_modes(retrace)
    if isinstance(again, str):
        runs.leaf_modules = opened
        return trace, comparison, report
    return retrace, again, retold


def _assemble(
    runs: Runs, trace: RecordedRun, signature: CallSignature, report: CaptureReport, conflict: str | None
) -> CapturedModule:
    model, leaf_modules = runs.model, runs.leaf_modules
    graph, recorder = trace.graph, trace.recorder
    replaced = {path: without_hooks(model.get_submodule(path)) for path in leaf_modules.hooked}
    for path, functional in recorder.functional_modules.items():
        if functional:
            replaced[path] = in_place_when_private(replaced.get(path, model.get_submodule(path)))
    for node in graph.nodes:
        if node.op == "call_module" and node.target in replaced:
            node.meta.pop("mutates", None)
    return assemble(
        build_shell(model, leaf_modules.ids, replaced),
        graph,
        signature,
        type(model).__name__,
        report,
        constants=recorder.tape.constants,
        conflict=conflict,
        modes=overridden_modes(model),
        keep_random=model.training,
    )
