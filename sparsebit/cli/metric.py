"""The metric that --test and --metric define, and its measurement."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from sparsebit.analysis.accuracy import Metric, has_labels, measure, top1
from sparsebit.batches import ModelInputs
from sparsebit.cli.command import UsageError
from sparsebit.cli.data import first, open_data
from sparsebit.cli.reference import blamed_on, resolve_function


def open_metric(arguments: argparse.Namespace) -> Metric:
    """The function that --metric names; errors inside it are reported as errors of that function."""
    if not arguments.metric:
        return top1
    found = resolve_function(arguments.metric, "metric")

    def metric(outputs: Any, labels: Any) -> float:
        with blamed_on(f"the metric {arguments.metric!r}"):
            return float(found(outputs, labels))

    return metric


def accuracy_of(
    model: nn.Module | Callable[..., Any], data: Iterable[Any], metric: Metric, what: str
) -> float:
    """The metric on labelled data; an error if there are no labels, or if the metric is NaN."""
    if metric is top1 and not has_labels(first(data), ModelInputs.of(model)):
        raise UsageError(
            "the data of --test has no labels to measure accuracy with",
            expected="batches of (inputs, labels) with whole numbers as labels",
            hint="add --metric file.py:function for other kinds of labels",
        )
    with blamed_on("the model, called with the data,"):
        found = measure(model, data, metric, what=what)
    if math.isnan(found):
        raise UsageError(f"{what}: the metric is NaN")
    return found


class Accuracy:
    """The metric of a model before and after, on the batches of --test, if there are any."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        if arguments.metric and not arguments.test:
            raise UsageError("--metric measures on labelled batches", hint="add --test DATA")
        self.metric = open_metric(arguments)
        self.data = open_data(arguments, arguments.test) if arguments.test else None
        self.found: list[float] = []

    def add(self, model: nn.Module, what: str) -> None:
        """Measure one more model."""
        if self.data is not None:
            self.found.append(accuracy_of(model, self.data, self.metric, what))

    @property
    def pair(self) -> tuple[float, float] | None:
        """Before and after."""
        return (self.found[0], self.found[-1]) if self.found else None

    def rows(self) -> list[str]:
        """One line, if it was measured."""
        if not self.found:
            return []
        before, after = self.found[0], self.found[-1]
        if max(abs(before), abs(after)) > 1:  # a user's metric, which need not be a fraction
            return [f"metric: {before:.4g} before, {after:.4g} after ({after - before:+.4g})"]
        shares = f"{100 * before:.2f} % before, {100 * after:.2f} % after"
        return [f"accuracy: {shares} ({100 * (after - before):+.2f} points)"]
