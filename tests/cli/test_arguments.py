"""Arguments that several commands share: what may be typed, what it becomes, and what is refused."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from sparsebit.cli import arguments


def parse(add: object, *words: str, **options: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add(parser, **options)  # type: ignore[operator]
    return parser.parse_args(words)


def test_numbers_that_cannot_be_used_are_refused_with_what_can() -> None:
    assert arguments.positive("3") == 3 and arguments.seconds("0.5") == 0.5
    for read, text in ((arguments.positive, "0"), (arguments.seconds, "0"), (arguments.seconds, "inf")):
        with pytest.raises(argparse.ArgumentTypeError, match=f"got {text}"):
            read(text)


def test_a_model_has_weights_and_what_was_made_of_it() -> None:
    found = parse(arguments.add_model, "net.py:make", "--quantized", "q", quantized=True)
    assert (found.model, found.weights, found.pruned, found.quantized) == ("net.py:make", None, [], "q")
    with pytest.raises(argparse.ArgumentError), pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "error", _raise)
        parse(arguments.add_model, "net.py:make", "--quantized", "q")


def _raise(self: argparse.ArgumentParser, message: str) -> None:
    raise argparse.ArgumentError(None, message)


def test_what_is_not_given_is_none() -> None:
    data = parse(arguments.add_data, "--data", "images", "--mean", "0.5")
    assert (data.batch_size, data.image_size, data.batches, data.mean) == (None, None, None, [0.5])
    assert parse(arguments.add_input, "--input", "1x3", "--input", "m=2").input == ["1x3", "m=2"]


def test_overrides_add_up_and_outputs_are_paths() -> None:
    config = parse(
        arguments.add_config, "--set", "A=1", "--set", "B=2", what="a file", key="A=1", default="w4"
    )
    assert (config.config, config.overrides) == ("w4", ["A=1", "B=2"])

    def outputs(parser: argparse.ArgumentParser) -> None:
        arguments.add_output(parser, "a folder")
        arguments.add_report(parser)
        arguments.add_test(parser)

    found = parse(outputs, "-o", "out", "--report", "r.html", "--test", "x.npz")
    assert (found.output, found.report, found.test, found.metric) == (
        Path("out"), Path("r.html"), "x.npz", None,
    )  # fmt: skip
