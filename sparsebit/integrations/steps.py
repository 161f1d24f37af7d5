"""The actions of quantization-aware training and gradual pruning during a training run, for any framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.training.training import BatchNormMode
from sparsebit.sparse import SparseModel

T = TypeVar("T", bound=nn.Module)


def find(model: nn.Module, kind: type[T]) -> T:
    """The only ``QuantModel`` or ``SparseModel`` in the object that a framework trains.

    Frameworks wrap models: in their own modules, for several devices, for compilation.
    """
    found = [module for module in model.modules() if isinstance(module, kind)]
    if len(found) != 1:
        raise SparsebitError(
            f"this callback trains one {kind.__name__}, but the model contains {len(found)}",
            got=type(model).__name__,
            hint=f"use {kind.__name__}(model, config, example_inputs) as the model",
        )
    return found[0]


@dataclass(kw_only=True)
class QatSteps:
    """Calibrate, switch quantization on, and freeze ranges and statistics before the end.

    Args:
        data: batches to calibrate with; by default the training batches.
        batches: how many of them.
        feed: makes the arguments of a batch, as for ``QuantModel.calibrate``.
        batch_norm, observers, distill, temperature: as for ``QuantModel.init_QAT``.
        settle_after: the step after which batch norm and followed ranges stop moving; never by default. Late in
        training, their changes do more harm than good.
    """

    data: Iterable[Any] | None = None
    batches: int = 8
    feed: Callable[[Any], Any] | None = None
    batch_norm: BatchNormMode = "leave"
    observers: Literal["freeze", "update"] = "freeze"
    distill: float = 0.0
    temperature: float = 4.0
    settle_after: int | None = None
    steps: int = field(default=0, init=False)

    def begin(self, model: nn.Module, loader: Iterable[Any] | None) -> None:
        """Call before the first step. A model already in training, for example after a restart, is not changed."""
        qmodel = find(model, QuantModel)
        if not qmodel.enable_qat:
            batches = self.data if self.data is not None else loader
            if not all(
                quantizer.calibrated or quantizer.fake_fused for quantizer in qmodel.quantizers.values()
            ):
                if batches is None:
                    raise SparsebitError(
                        "there is no data to calibrate with", hint="pass data= to the callback"
                    )
                qmodel.calibrate(batches, self.batches, feed=self.feed)
            qmodel.init_QAT(
                batch_norm=self.batch_norm,
                observers=self.observers,
                distill=self.distill,
                temperature=self.temperature,
            )
        qmodel.train()

    def after_step(self, model: nn.Module, step: int) -> None:
        """Call after each step of the optimizer; ``step`` counts from 1."""
        self.steps = step
        if self.settle_after is not None and step == self.settle_after:
            qmodel = find(model, QuantModel)
            qmodel.qat.settle(qmodel)


@dataclass(kw_only=True)
class PruningSteps:
    """Prune as the schedule of the config says, one call per step of the optimizer.

    Args:
        data, loss: for criteria that need other data than the training step's own gradients.
    """

    data: Iterable[Any] | None = None
    loss: Callable[..., Any] | None = None
    pruned_at: list[int] = field(default_factory=list, init=False)

    def after_step(self, model: nn.Module, step: int) -> None:
        """Call between the optimizer's step and ``zero_grad``: gradients may be needed."""
        if find(model, SparseModel).step(self.data, self.loss):
            self.pruned_at.append(step)
