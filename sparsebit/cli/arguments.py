"""Arguments that several commands have. It only declares arguments and reads no files, so that --help is fast."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def positive(text: str) -> int:
    """An integer of at least 1, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected 1 or more, got {text}")
    return number


def seconds(text: str) -> float:
    """A time above zero, for argparse."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"expected more than 0, got {text}")
    return number


def add_model(parser: argparse.ArgumentParser, *, quantized: bool = False) -> None:
    """MODEL, --weights, --pruned, and --quantized for commands that can use a quantized model."""
    parser.add_argument("model", metavar="MODEL", help="file.py:factory or package.module:factory")
    add_weights(parser)
    if quantized:
        parser.add_argument(
            "--quantized", metavar="FOLDER", help="folder that `sparsebit quantize` wrote for this model"
        )


def add_weights(parser: argparse.ArgumentParser) -> None:
    """--weights and --pruned."""
    parser.add_argument(
        "--weights", metavar="FILE", help="weights to load: safetensors, or a state dict saved by torch"
    )
    parser.add_argument(
        "--pruned",
        metavar="FOLDER",
        action="append",
        default=[],
        help="folder that `sparsebit prune` wrote for this model; repeat it if it was pruned again",
    )


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """--runtime."""
    parser.add_argument(
        "--runtime",
        choices=("onnxruntime", "openvino"),
        default="onnxruntime",
        help="runtime for ONNX files (onnxruntime)",
    )


def add_data(parser: argparse.ArgumentParser, *, required: bool = True, what: str = "to work with") -> None:
    """--data and how to read it."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data", metavar="DATA", required=required, help=f"batches {what}: file.py:loader, images/, or x.npz"
    )
    _add_reading(group)


def _add_reading(group: Any) -> None:
    """Arguments that say how images and arrays become batches."""
    group.add_argument("--batch-size", type=positive, metavar="N", help="batch size for images and .npz (32)")
    group.add_argument("--batches", type=positive, metavar="N", help="use only the first N batches")
    group.add_argument("--image-size", type=positive, metavar="N", help="pixels per side of images (224)")
    group.add_argument(
        "--mean",
        type=float,
        nargs="+",
        help="mean of each channel, subtracted from images (ImageNet's)",
    )
    group.add_argument(
        "--std",
        type=float,
        nargs="+",
        help="standard deviation of each channel, by which images are divided (ImageNet's)",
    )


def add_input(parser: argparse.ArgumentParser) -> None:
    """--input: sizes to record a model with if there is no data."""
    parser.add_argument(
        "--input",
        metavar="SHAPE",
        action="append",
        default=[],
        help="an example input: 1x3x224x224, 1x128:int64, or by name mask=1x128:bool; repeat for several",
    )


def add_config(
    parser: argparse._ActionsContainer, *, what: str, key: str, default: str | None = None
) -> None:
    """--config and --set, with a key of this kind of config as the example."""
    shown = f" ({default})" if default else ""
    parser.add_argument("--config", metavar="CONFIG", default=default, help=f"{what}{shown}")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="overrides",
        help=f"change one key of the config, such as {key}; may be repeated",
    )


def add_output(parser: argparse.ArgumentParser, what: str, *, required: bool = True) -> None:
    """--output: written completely or not at all."""
    parser.add_argument("-o", "--output", metavar="PATH", type=Path, required=required, help=what)


def add_report(parser: argparse.ArgumentParser, where: str = "") -> None:
    """--report; ``where`` names the actions that have it."""
    parser.add_argument("--report", metavar="FILE", type=Path, help=f"{where}also write an HTML report")


def add_test(parser: argparse.ArgumentParser) -> None:
    """--test and --metric."""
    group = parser.add_argument_group("accuracy")
    group.add_argument(
        "--test", metavar="DATA", help="labelled batches to measure accuracy with, before and after"
    )
    group.add_argument(
        "--metric",
        metavar="NAME",
        help="file.py:function of (outputs, labels), the larger the better; by default top-1 accuracy",
    )
