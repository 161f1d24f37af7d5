"""Callbacks for ``transformers.Trainer``: ``Trainer(model=qmodel, callbacks=[QatCallback(...)])``.

The model given to the Trainer is a ``QuantModel`` or ``SparseModel``, or holds one. It takes any arguments, so set
``remove_unused_columns=False``: the Trainer would read its signature and drop every column.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from sparsebit.integrations.steps import PruningSteps, QatSteps


class QatCallback(TrainerCallback):
    """Quantization-aware training: calibrates when training starts, then trains with rounding.

    Takes what ``QatSteps`` takes, by keyword.
    """

    def __init__(self, **settings: Any) -> None:
        self.steps = QatSteps(**settings)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Calibrate, unless that was done before, and switch quantization on."""
        self.steps.begin(kwargs["model"], kwargs.get("train_dataloader"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called once per step of the optimizer; the Trainer has already counted it."""
        self.steps.after_step(kwargs["model"], int(state.global_step))


class PruningCallback(TrainerCallback):
    """Gradual pruning by the schedule of the config. Takes what ``PruningSteps`` takes, by keyword."""

    def __init__(self, **settings: Any) -> None:
        self.steps = PruningSteps(**settings)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Called between the optimizer's step and ``zero_grad``, while gradients exist; the step is not counted yet."""
        self.steps.after_step(kwargs["model"], int(state.global_step) + 1)
