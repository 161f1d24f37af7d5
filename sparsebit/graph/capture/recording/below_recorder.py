"""Work below the torch API while a model is recorded."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sparsebit.graph.capture.recording.recorder import Recorder


class BelowRecorder(TorchDispatchMode):
    """Detects work below the torch API: vmap, scripted modules, C++ code."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recorder = recorder

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.recorder.quiet:
            return func(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunction():
            return self.recorder.record(func, args, kwargs or {})
