"""Callbacks with the hooks of Lightning: ``Trainer(callbacks=[QatCallback(...)])``.

Where Lightning is installed they are callbacks of its own class; otherwise they are plain objects with the same hooks,
for trainers that call those. The model, or a module inside it, is a ``QuantModel`` or ``SparseModel``.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from sparsebit.integrations.steps import PruningSteps, QatSteps


def _base() -> type:
    for name in ("lightning.pytorch", "pytorch_lightning"):
        try:
            found: type = importlib.import_module(name).Callback
        except ImportError:
            continue
        return found
    return object


_Callback: Any = _base()


class _StepCallback(_Callback):  # type: ignore[misc]
    """Counts steps of the optimizer, which are fewer than batches when gradients are accumulated."""

    def __init__(self, steps: QatSteps | PruningSteps) -> None:
        super().__init__()
        self.steps = steps
        self._last = 0

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Record the step of a resumed run; the schedule's own count is in the state dict."""
        self._last = int(getattr(trainer, "global_step", 0))

    def on_train_batch_end(
        self, trainer: Any, pl_module: nn.Module, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Run the actions due after a step, while its gradients exist."""
        if trainer.global_step != self._last:
            self._last = int(trainer.global_step)
            self.steps.after_step(pl_module, self._last)


class QatCallback(_StepCallback):
    """Quantization-aware training: calibrates when training starts, then trains with rounding.

    Takes what ``QatSteps`` takes, by keyword.
    """

    steps: QatSteps

    def __init__(self, **settings: Any) -> None:
        super().__init__(QatSteps(**settings))

    def on_train_start(self, trainer: Any, pl_module: nn.Module) -> None:
        """Calibrate, unless that was done before, and switch quantization on."""
        super().on_train_start(trainer, pl_module)
        self.steps.begin(pl_module, getattr(trainer, "train_dataloader", None))


class PruningCallback(_StepCallback):
    """Gradual pruning by the schedule of the config. Takes what ``PruningSteps`` takes, by keyword."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(PruningSteps(**settings))
