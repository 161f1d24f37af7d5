"""The module to capture: wrappers that compile or distribute a model are removed, other objects are refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from sparsebit.errors import CaptureError, with_article


def unwrap(model: Any) -> nn.Module:
    """The module itself, if it can be captured.

    A class that already contains a graph says so in ``why_not_capture``, a text for the user. It is refused inside
    another module too, whose graph would consist of the arithmetic of its quantizers.

    Raises:
        CaptureError: one message for each kind of wrong object.
    """
    if isinstance(model, torch.export.ExportedProgram):
        raise CaptureError(
            "an ExportedProgram is not a torch.nn.Module",
            hint=how_to_get_module(model),
        )
    if not isinstance(model, nn.Module):
        raise CaptureError(
            "only a torch.nn.Module or a torch.export.ExportedProgram can be captured",
            got=with_article(type(model).__name__),
            hint=how_to_get_module(model),
        )
    inner = without_wrappers(model)
    if isinstance(inner, torch.jit.ScriptModule):
        raise CaptureError(
            "a TorchScript module has no Python code to record",
            got=type(inner).__name__,
            hint="pass the module that was given to torch.jit.script or torch.jit.trace",
        )
    for name, module in inner.named_modules():
        reason = getattr(module, "why_not_capture", None)
        if isinstance(reason, str):
            kind = with_article(module._get_name())
            raise CaptureError(f"{kind} cannot be captured again", where=name or None, hint=reason)
    for name, tensor in [*inner.named_parameters(), *inner.named_buffers()]:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise CaptureError(
                f"parameter {name!r} has no shape yet",
                hint="run the model once, so that its lazy modules get their weights",
            )
        if tensor.is_inference() and not torch.is_inference_mode_enabled():
            raise CaptureError(
                f"{name!r} was created in torch.inference_mode() and cannot be used outside it",
                hint="build and load the model outside of inference mode",
            )
    return inner


def how_to_get_module(wrong: object) -> str | None:
    """What to type to get a module, for objects that are often passed instead of one."""
    if isinstance(wrong, torch.export.ExportedProgram):
        return "pass program.module(), or better the module it was exported from"
    if isinstance(wrong, type):
        return f"pass an object of the class: {wrong.__name__}(...)"
    if isinstance(wrong, str | os.PathLike | Mapping):
        return "build the model and load its weights into it: model.load_state_dict(...)"
    return "wrap a function in a module whose forward calls it" if callable(wrong) else None


def without_wrappers(model: nn.Module) -> nn.Module:
    """The module inside all wrappers that compile or distribute it.

    Example:
        >>> without_wrappers(nn.DataParallel(nn.Linear(2, 2)))
        Linear(in_features=2, out_features=2, bias=True)
    """
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    """The module inside a torch wrapper that does not change what it computes, or None."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        module: nn.Module = model.module
        return module
    return model._modules.get("_orig_mod") if type(model).__name__ == "OptimizedModule" else None
