"""``capture``: one function over three ways of turning a model into a graph."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import fx, nn

from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture.exported.program import from_exported, from_model
from sparsebit.graph.capture.leaves import find_leaves
from sparsebit.graph.capture.module import CapturedModule, uninitialized
from sparsebit.graph.capture.recording.record import record
from sparsebit.graph.capture.recording.recorder import DataPolicy
from sparsebit.graph.capture.report import WARNED
from sparsebit.graph.capture.symbolic.trace import trace_symbolically

Frontend = Literal["auto", "record", "symbolic", "exported"]
_FRONTENDS = ("auto", "record", "symbolic", "exported")


def capture(
    model: nn.Module | torch.export.ExportedProgram,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    frontend: Frontend = "auto",
    *,
    skip: Sequence[str] = (),
    on_data: DataPolicy = "refuse",
) -> CapturedModule:
    """Turn a model into a ``torch.fx`` graph that computes the same, with the same signature and state.

    Args:
        model: any ``nn.Module``, unmodified, in the mode it will be used in; or a ``torch.export.ExportedProgram``.
        args: example positional inputs, as for ``torch.export.export``; a lone tensor is taken as one argument.
        kwargs: example keyword inputs.
        frontend: ``record`` runs the model on the example inputs and keeps what it did; ``symbolic`` traces without
            inputs (``QTracer``); ``exported`` goes through ``torch.export``. ``auto`` records if there are inputs.
        skip: fnmatch patterns on dotted module names; what matches stays one node.
        on_data: what to do when Python control flow depends on the inputs' values: ``refuse``, or
            ``specialise`` to keep the branch the example took, with a warning.

    Returns:
        A ``torch.fx.GraphModule``. It shares parameters and leaf modules with the model.

    Raises:
        CaptureError: with the line of the model's own source that is in the way, and what to try next.

    Example:
        >>> gm = capture(nn.Sequential(nn.Linear(4, 2), nn.ReLU()).eval(), torch.zeros(1, 4))
        >>> [node.name for node in gm.graph.nodes]
        ['input_1', '_0', '_1', 'output']
    """
    positional, keyword = _as_arguments(args), dict(kwargs or {})
    if frontend not in _FRONTENDS:
        raise CaptureError(f"no front-end named {frontend!r}", expected=f"one of {', '.join(_FRONTENDS)}")
    if on_data not in ("refuse", "specialise"):
        raise CaptureError(f"on_data is {on_data!r}", expected="'refuse' or 'specialise'")
    if isinstance(model, torch.export.ExportedProgram):
        if frontend not in ("auto", "exported"):
            raise CaptureError(
                f"an ExportedProgram cannot be captured by {frontend!r}",
                hint="leave frontend out, or capture the module",
            )
        return from_exported(model)
    if not isinstance(model, nn.Module):
        raise CaptureError(
            "only a torch.nn.Module or a torch.export.ExportedProgram can be captured",
            got=type(model).__name__,
            hint="wrap a function in a module whose forward calls it",
        )
    lazy = uninitialized(model)
    if lazy is not None:
        raise CaptureError(
            f"parameter {lazy!r} has no shape yet",
            hint="run the model once, so that its lazy modules get their weights",
        )
    find_leaves(model, skip)  # a pattern that matches nothing is an error, whichever way we go
    given = bool(positional or keyword)
    if frontend == "symbolic" or (frontend == "auto" and not given and not _runs_without_inputs(model)):
        return trace_symbolically(model, skip=skip)
    if frontend == "exported" and skip:
        raise CaptureError(
            "torch.export cannot keep modules whole",
            got=f"skip={list(skip)!r}",
            hint="use frontend='record' for that",
        )
    if frontend == "exported":
        exported = from_model(model, positional, keyword)
        _warn(exported)
        return exported
    captured = record(model, positional, keyword, skip=skip, on_data=on_data)
    _warn(captured)
    return captured


def _as_arguments(args: Any) -> tuple[Any, ...]:
    return tuple(args) if type(args) in (tuple, list) else (args,)  # a named tuple is one argument


def _runs_without_inputs(model: nn.Module) -> bool:
    return isinstance(model, fx.GraphModule) and not any(
        node.op == "placeholder" for node in model.graph.nodes
    )


def _warn(captured: CapturedModule) -> None:
    notes = captured.capture_report.of_kind(*WARNED)
    if notes:
        lines = "\n".join(f"  {note}" for note in notes[:8])
        more = f"\n  and {len(notes) - 8} more in .capture_report" if len(notes) > 8 else ""
        text = f"the captured graph fixed what depended on the example inputs:\n{lines}{more}"
        warnings.warn(SpecializationWarning(text), stacklevel=3)
