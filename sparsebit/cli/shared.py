"""Arguments that several commands have: the config, where to write, and what to measure with."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch import nn

from sparsebit.cli.command import UsageError
from sparsebit.cli.data import first
from sparsebit.cli.reference import blamed_on, resolve
from sparsebit.report.accuracy import Metric, has_labels, measure, top1


def add_config(parser: argparse.ArgumentParser, *, what: str, default: str | None = None) -> None:
    """--config and --set."""
    shown = f" ({default})" if default else ""
    parser.add_argument("--config", metavar="CONFIG", default=default, help=f"{what}{shown}")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help="change one key of the config, such as W.QUANTIZER.BIT=4; may be repeated",
    )


def add_output(parser: argparse.ArgumentParser, what: str, *, required: bool = True) -> None:
    """--output: written whole or not at all."""
    parser.add_argument("-o", "--output", metavar="PATH", type=Path, required=required, help=what)


def add_test(parser: argparse.ArgumentParser) -> None:
    """--test and --metric."""
    group = parser.add_argument_group("accuracy")
    group.add_argument(
        "--test", metavar="DATA", help="labelled batches to measure accuracy with, before and after"
    )
    group.add_argument(
        "--metric",
        metavar="NAME",
        help="file.py:function of (outputs, labels), the larger the better; by default how often the largest output "
        "is that of the label",
    )


def open_metric(arguments: argparse.Namespace) -> Metric:
    """The function --metric names."""
    if not arguments.metric:
        return top1
    found = resolve(arguments.metric, "metric")
    if not callable(found):
        raise UsageError(f"{arguments.metric!r} is no function", got=f"a {type(found).__name__}")
    metric: Metric = found
    return metric


def accuracy_of(
    model: nn.Module | Callable[..., Any], data: Iterable[Any], metric: Metric, what: str
) -> float:
    """The metric on labelled data; a message where there are no labels."""
    if metric is top1 and not has_labels(first(data)):
        raise UsageError(
            "the data of --test has no labels to count right answers with",
            expected="batches of (inputs, labels) with whole numbers as labels",
            hint="add --metric file.py:function for other kinds of labels",
        )
    with blamed_on("the model, called with the data"):
        return measure(model, data, metric, what=what)
