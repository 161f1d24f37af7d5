"""Parts of torch and Python that are replaced while a recording runs, and always restored."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from sparsebit.graph.capture.leaves import LeafModules
from sparsebit.graph.capture.recording.recorder import Recorder
from sparsebit.graph.exclusive import exclusively, in_this_thread, replaced
from sparsebit.graph.functional import AutogradCall


@exclusively
def recording(recorder: Recorder, leaves: LeafModules) -> Iterator[None]:
    """Let ``recorder`` see events in this thread other than calls of the torch API.

    These are module calls, autograd functions, scripted functions (run as the Python they were made from) and autocast
    blocks.
    """
    ours, paths = in_this_thread(), recorder.tape.names.paths
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
        if id(module) in leaves.ids and recorder.tape.knows(module):
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
        # torch reads the mask's numbers to save work; while recording, a mask is always applied
        return bool(is_causal) if ours() else detect(mask, is_causal, size)

    hooked = leaves.hooked.values()
    with replaced(
        (torch.nn.modules.transformer, "_detect_is_causal_mask", keep_mask),
        (torch.jit.ScriptFunction, "__call__", script_call),
        (nn.Module, "__call__", module_call),
        (torch.autograd.Function, "apply", classmethod(function_apply)),
        (torch.autocast, "__enter__", autocast_enter),
        (torch.autocast, "__exit__", autocast_exit),
        *((module, "forward", functools.partial(hooked_forward, module)) for module in hooked),
    ):
        yield


@exclusively
def announcing_capture() -> Iterator[None]:
    """Tell models that a graph is being captured, so that they avoid reading their data."""
    ours = in_this_thread()
    compiling, exporting = torch.compiler.is_compiling, torch.compiler.is_exporting
    answers = (
        ("is_compiling", lambda: ours() or compiling()),
        ("is_exporting", lambda: ours() or exporting()),
    )
    with replaced(*((torch.compiler, name, answer) for name, answer in answers)):
        yield
