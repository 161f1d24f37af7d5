"""``sparsebit profile``: the errors of a quantized model, layer by layer."""

from __future__ import annotations

import argparse

from sparsebit.cli.arguments import add_data, add_model
from sparsebit.cli.command import Command, Outcome, UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit profile``."""
    add_model(parser, quantized=True)
    parser.add_argument(
        "--sort", choices=("graph", "sqnr"), default="graph", help="order of the layers (graph)"
    )
    add_data(parser, what="to measure with; a batch or two is enough")


def check(arguments: argparse.Namespace) -> None:
    """Require a quantized model."""
    if not arguments.quantized:
        raise UsageError("only a quantized model has errors to profile", hint="add --quantized FOLDER")


def run(arguments: argparse.Namespace) -> Outcome:
    """Measure and show."""
    from sparsebit.analysis import profile
    from sparsebit.analysis.profiling.agreement import decibels
    from sparsebit.cli.data import open_data
    from sparsebit.cli.model import open_model
    from sparsebit.cli.reference import blamed_on
    from sparsebit.quantization import QuantModel
    from sparsebit.quantization.checkpoint import take_floats

    floats = open_model(arguments)
    model = QuantModel.load(arguments.quantized, floats).eval()
    take_floats(model, floats)
    data = open_data(arguments)
    with blamed_on("the model, called with the data,"):
        errors = profile(model, data)
    shown = errors.table(sort=arguments.sort)
    advice = [f"  {item}" for item in errors.keep_float()]
    words = ["keep in float:", *advice] if advice else ["no layer stands out"]
    return Outcome(
        shown=(shown, f"the model's outputs: {decibels(errors.output.sqnr_db)}", *words),
        data=errors.to_dict(),
    )


COMMAND = Command(
    description="""
Run the float and the quantized model side by side. Shows for each layer the error of its result when
only this layer is quantized (its own error) and when all layers before it are quantized as well (the
accumulated error), as SQNR, cosine and mean squared error; the range of its input, and how much of it
is clipped. Then lists the layers to keep in float, and why.
""",
    examples=(
        "sparsebit quantize sparsebit.demo:net --data sparsebit.demo:training_data --output digits-int8",
        "sparsebit profile sparsebit.demo:net --quantized digits-int8 --data sparsebit.demo:held_out_data --batches 2",
    ),
    add_arguments=add_arguments,
    check=check,
    run=run,
)
