"""What is put aside in torch and Python while a recording runs, and put back whatever happens."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from sparsebit.graph.capture.exclusive import CAPTURING, in_this_thread
from sparsebit.graph.capture.leaves import LeafModules
from sparsebit.graph.capture.recording.recorder import Recorder
from sparsebit.graph.functional import AutogradCall


@contextlib.contextmanager
def recording(recorder: Recorder, leaves: LeafModules) -> Iterator[None]:
    """Let ``recorder`` see what goes on in this thread besides calls of the torch API.

    These are module calls, autograd functions, scripted functions (run as the Python they were made from) and autocast
    blocks.
    """
    with CAPTURING, _patched(recorder, recorder.tape.names.paths, leaves):
        yield


@contextlib.contextmanager
def _patched(recorder: Recorder, paths: dict[int, str], leaves: LeafModules) -> Iterator[None]:
    ours = in_this_thread()
    call_module = nn.Module.__call__
    apply = vars(torch.autograd.Function)["apply"]  # the classmethod itself, not bound to one class
    call_script = torch.jit.ScriptFunction.__call__
    enter, leave = torch.autocast.__enter__, torch.autocast.__exit__

    def active() -> bool:
        if recorder.quiet or not ours():
            return False
        return torch._C._functorch.peek_interpreter_stack() is None  # inside vmap or grad: not our tensors

    def module_call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        path = paths.get(id(module)) if active() else None
        if path is None:
            return call_module(module, *args, **kwargs)
        if id(module) in leaves.whole and recorder.tape.knows(module):
            return recorder.record_module(module, path, args, kwargs, call_module)
        recorder.tape.path.append(path)
        try:
            return call_module(module, *args, **kwargs)
        finally:
            recorder.tape.path.pop()

    def hooked_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not active() or not recorder.tape.knows(module):
            return type(module).forward(module, *args, **kwargs)
        return recorder.record_module(module, paths[id(module)], args, kwargs, type(module).forward)

    def function_apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if not active() or cls.__module__ == "torch.utils.checkpoint":
            return apply.__get__(None, cls)(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return recorder.record(AutogradCall(cls), args, kwargs)

    def autocast_enter(self: Any) -> Any:
        if active():
            recorder.tape.enter_autocast(self.device, self.fast_dtype, self._enabled, self._cache_enabled)
        return enter(self)  # type: ignore[no-untyped-call]

    def autocast_exit(self: Any, *error: Any) -> Any:
        if active():
            recorder.tape.exit_autocast()
        return leave(self, *error)

    def script_call(function: Any, *args: Any, **kwargs: Any) -> Any:
        source = getattr(function, "_torchdynamo_inline", None)
        if source is None or not active():
            return call_script(function, *args, **kwargs)
        return source(*args, **kwargs)

    detect = torch.nn.modules.transformer._detect_is_causal_mask

    def keep_mask(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        # torch looks at the mask's numbers to save work; a mask is then always applied as it is
        return bool(is_causal) if ours() else detect(mask, is_causal, size)

    torch.nn.modules.transformer._detect_is_causal_mask = keep_mask
    for module in leaves.hooked.values():
        module.__dict__["forward"] = functools.partial(hooked_forward, module)
    torch.jit.ScriptFunction.__call__ = script_call  # type: ignore[method-assign,assignment]
    nn.Module.__call__ = module_call  # type: ignore[method-assign]
    torch.autograd.Function.apply = classmethod(function_apply)  # type: ignore[assignment]
    torch.autocast.__enter__ = autocast_enter  # type: ignore[method-assign]
    torch.autocast.__exit__ = autocast_exit  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__exit__ = leave  # type: ignore[method-assign]
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]
        nn.Module.__call__ = call_module  # type: ignore[method-assign]
        torch.jit.ScriptFunction.__call__ = call_script  # type: ignore[method-assign]
        torch.nn.modules.transformer._detect_is_causal_mask = detect
        for module in leaves.hooked.values():
            module.__dict__.pop("forward", None)


@contextlib.contextmanager
def announcing_capture() -> Iterator[None]:
    """Answer yes to models that ask whether a graph is being captured: they then avoid reading their data."""
    with CAPTURING:
        ours = in_this_thread()
        compiling, exporting = torch.compiler.is_compiling, torch.compiler.is_exporting
        torch.compiler.is_compiling = lambda: ours() or compiling()
        torch.compiler.is_exporting = lambda: ours() or exporting()
        try:
            yield
        finally:
            torch.compiler.is_compiling, torch.compiler.is_exporting = compiling, exporting
