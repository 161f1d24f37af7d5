"""What a benchmark needs of a task: a trained model, example and calibration inputs, and a metric."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.tasks.data import load_checkpoint
from benchmarks.tasks.progress import track

Call = tuple[tuple[Any, ...], dict[str, Any]]  # args and kwargs of one call of the model
Predict = Callable[..., Any]


class Scores(NamedTuple):
    """What the outputs over a whole test set come to."""

    metrics: dict[str, float]  # the task's own metric first
    predictions: Tensor  # one row a sample, in the order of the data set


@dataclass(frozen=True, kw_only=True, eq=False)  # tensors do not compare to one truth value
class Result:
    """One evaluation of one predictor on one task."""

    task: str
    metric: float
    metrics: dict[str, float]  # `metric` under its name, then others of interest
    predictions: Tensor  # [samples, ...]: integers where the task decides, floats where it scores
    seconds: float  # wall time inside `predict` only: neither decoding nor scoring
    cpu_seconds: float  # process time inside `predict`, all threads


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """One model on one data set. Inputs are decoded once per process and normalized batch by batch."""

    name: str
    metric: str
    published: (
        float  # what the float model reaches on the whole test set, as the data folder's README states it
    )
    folder: Path
    batch: int  # for `evaluate`; large enough to be fast, small enough to stay in memory

    @abstractmethod
    def network(self) -> nn.Module:
        """The architecture, with any weights."""

    @abstractmethod
    def calibration_calls(self, count: int, batch: int) -> list[Callable[[], Call]]:
        """Up to ``count`` samples that are not in the test set, one delayed call per batch."""

    @abstractmethod
    def test_calls(self, limit: int | None, batch: int) -> list[Callable[[], Call]]:
        """The test set, or its first ``limit`` samples, one delayed call per batch."""

    @abstractmethod
    def keep(self, output: Any) -> Tensor:
        """What scoring needs of one batch's output, on the CPU: [batch, ...]."""

    @abstractmethod
    def score(self, kept: Tensor, limit: int | None) -> Scores:
        """Metrics and predictions from the kept outputs of the whole (limited) test set."""

    def weights(self) -> dict[str, Tensor]:
        """The trained state, under the names of ``network()``."""
        return load_checkpoint(self.folder, f"{self.name}.pt")

    def model(self) -> nn.Module:
        """A new trained model in eval mode; it may be changed freely."""
        model = self.network()
        model.load_state_dict(self.weights(), strict=True)
        return model.eval()

    def example(self) -> Call:
        """Two calibration samples, to capture or export the model with."""
        return next(self.calibration(2, 2))

    def calibration(self, count: int = 256, batch: int = 32) -> Iterator[Call]:
        """Batches of real inputs that no figure is measured on; fewer than ``count`` where there are fewer.

        The samples are spread evenly over the calibration set, so a small count still sees all of its kinds.
        """
        _require_positive(count=count, batch=batch)
        calls = self.calibration_calls(count, batch)  # decodes now, not at the first `next`
        return (call() for call in calls)

    def evaluate(self, predict: Predict, limit: int | None = None, *, batch: int | None = None) -> Result:
        """Run ``predict``, called as the model is, over the test set or its first ``limit`` samples.

        Inputs are CPU tensors; outputs may be on any device. The last batch may be smaller than the others.
        """
        _require_positive(limit=limit, batch=batch)
        kept: list[Tensor] = []
        wall = process = 0.0
        for call in track(self.test_calls(limit, batch or self.batch), f"{self.name}: evaluating"):
            args, kwargs = call()
            wall_start, process_start = time.perf_counter(), time.process_time()
            with torch.no_grad():
                output = predict(*args, **kwargs)
                _wait_for(output)
                wall += time.perf_counter() - wall_start
                process += time.process_time() - process_start
                kept.append(self.keep(output))
        metrics, predictions = self.score(torch.cat(kept), limit)
        return Result(
            task=self.name,
            metric=metrics[self.metric],
            metrics=metrics,
            predictions=predictions,
            seconds=wall,
            cpu_seconds=process,
        )


def _wait_for(output: Any) -> None:
    """A GPU returns before it has finished, which would make the next step look slow and this one fast."""
    if any(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in pytree.tree_leaves(output)):
        torch.cuda.synchronize()


def _require_positive(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"{name}: expected a positive number, got {count}")
