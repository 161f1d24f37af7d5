"""``capture``: one function for three ways of turning a model into a graph."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import fx, nn

from sparsebit.batches.calls import require_dense
from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture.dynamic import Dynamic, require_free
from sparsebit.graph.capture.exported.program import from_exported, from_model
from sparsebit.graph.capture.leaves import find_leaves
from sparsebit.graph.capture.module import CapturedModule
from sparsebit.graph.capture.recording.data_reads import DataPolicy
from sparsebit.graph.capture.recording.record import record
from sparsebit.graph.capture.report import WARNED
from sparsebit.graph.capture.symbolic.trace import trace_symbolically
from sparsebit.graph.capture.unwrap import unwrap
from sparsebit.progress import waiting

Frontend = Literal["auto", "record", "symbolic", "exported"]
_EXPORTING = "capturing with torch.export, which is slow the first time"
_FRONTENDS = ("auto", "record", "symbolic", "exported")


def capture(
    model: nn.Module | torch.export.ExportedProgram,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    frontend: Frontend = "auto",
    *,
    skip: Sequence[str] = (),
    on_data: DataPolicy = "refuse",
    dynamic: Dynamic | None = None,
) -> CapturedModule:
    """Turn a model into a ``torch.fx`` graph that computes the same, with the same signature and state.

    Args:
        model: any ``nn.Module``, unmodified, in the mode it will be used in; or a ``torch.export.ExportedProgram``.
        args: example positional inputs, as a tuple; a single tensor is one argument, a dict holds keyword inputs.
        kwargs: example keyword inputs, beside positional ones.
        frontend: ``record`` runs the model on the example inputs and records it; ``symbolic`` traces without
            inputs (``QTracer``); ``exported`` goes through ``torch.export``. ``auto`` records if there are inputs.
        skip: fnmatch patterns on dotted module names; what matches stays one node.
        on_data: what to do when Python control flow depends on the inputs' values: ``refuse``, or
            ``specialise`` to keep the branch the example took, with a warning.
        dynamic: dimensions that must be free, by argument: ``{"x": [0, 2, 3]}``; or ``[0]`` for all tensor arguments.
            Every dimension that can be free is free anyway; this raises an error if a named one is not.

    Returns:
        A ``torch.fx.GraphModule``. It shares parameters and leaf modules with the model.

    Raises:
        CaptureError: with the line of the model's source that prevents it, and what to try next.

    Example:
        >>> gm = capture(nn.Sequential(nn.Linear(4, 2), nn.ReLU()).eval(), torch.zeros(1, 4))
        >>> [node.name for node in gm.graph.nodes]
        ['input_1', '_0', '_1', 'output']
    """
    positional, keyword = _as_call(args, kwargs)
    require_dense(positional, keyword, allow_sparse=True)
    if frontend not in _FRONTENDS:
        raise CaptureError(f"{frontend!r} is not a front-end", expected=f"one of {', '.join(_FRONTENDS)}")
    if on_data not in ("refuse", "specialise"):
        raise CaptureError(f"on_data is {on_data!r}", expected="'refuse' or 'specialise'")
    if isinstance(model, torch.export.ExportedProgram):
        if frontend not in ("auto", "exported"):
            raise CaptureError(
                f"an ExportedProgram cannot be captured by {frontend!r}",
                hint="leave frontend out, or capture the module",
            )
        with waiting(_EXPORTING):
            captured = from_exported(model)
        return _checked(captured, dynamic)
    model = unwrap(model)
    find_leaves(model, skip)  # a pattern that matches nothing is an error with every front-end
    given = bool(positional or keyword)
    if frontend == "symbolic" or (frontend == "auto" and not given and not _runs_without_inputs(model)):
        return trace_symbolically(model, positional, keyword, skip=skip)
    if frontend == "exported" and skip:
        raise CaptureError(
            "torch.export cannot keep a module as one node",
            got=f"skip={list(skip)!r}",
            hint="use frontend='record' for that",
        )
    if frontend == "exported":
        with waiting(_EXPORTING):
            captured = from_model(model, positional, keyword)
    else:
        captured = record(model, positional, keyword, skip=skip, on_data=on_data)
    return _checked(captured, dynamic)


def _as_call(args: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Example inputs as positional and keyword arguments: a dict gives keywords, a lone tensor is one argument."""
    if isinstance(args, dict):
        if kwargs:
            raise CaptureError(
                "example inputs are given as keywords twice",
                got=f"{', '.join(map(repr, args))} and {', '.join(map(repr, kwargs))}",
                hint="give one dict; a dict that is itself one argument goes in a tuple: ({...},)",
            )
        return (), {str(key): value for key, value in args.items()}
    positional = tuple(args) if type(args) in (tuple, list) else (args,)  # a named tuple is one argument
    return positional, dict(kwargs or {})


def _runs_without_inputs(model: nn.Module) -> bool:
    """Whether the model takes no arguments, so that it can be recorded without example inputs."""
    if isinstance(model, fx.GraphModule):
        return not any(node.op == "placeholder" for node in model.graph.nodes)
    return not inspect.signature(model.forward).parameters


def _checked(captured: CapturedModule, dynamic: Dynamic | None) -> CapturedModule:
    if dynamic is not None:
        require_free(captured, dynamic)
    notes = captured.capture_report.of_kind(*WARNED)
    if notes:
        lines = "\n".join(f"  {note}" for note in notes[:8])
        more = f"\n  and {len(notes) - 8} more in .capture_report" if len(notes) > 8 else ""
        text = f"the captured graph fixed values that depend on the example inputs:\n{lines}{more}"
        warnings.warn(SpecializationWarning(text), stacklevel=3)
    return captured
