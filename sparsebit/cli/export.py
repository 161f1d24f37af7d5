"""``sparsebit export``: write a model as an ONNX file, run the file and compare it."""

from __future__ import annotations

import argparse

from sparsebit.cli.arguments import add_data, add_input, add_model, add_output
from sparsebit.cli.command import Command, Outcome
from sparsebit.progress import waiting
from sparsebit.targets import TARGETS

AXIS_NAMES = {0: "batch"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit export``."""
    add_model(parser, quantized=True)
    add_output(parser, "file to write, such as model.onnx")
    add_input(parser)
    parser.add_argument(
        "--opset", type=int, metavar="N", help="ONNX opset; by default the lowest that has all types in use"
    )
    parser.add_argument(
        "--target", choices=tuple(TARGETS), help="runtime to write for; by default the model's"
    )
    parser.add_argument(
        "--dynamic",
        action="append",
        type=axes_of_input,
        metavar="NAME=AXES",
        help="axes of an input that may have any size, such as input_ids=0,1; repeat for several inputs. "
        "By default the batch, and the sequence length of text",
    )
    parser.add_argument("--fixed-sizes", action="store_true", help="fix every size, including the batch")
    parser.add_argument("--no-check", action="store_true", help="do not run the file and compare")
    add_data(parser, required=False, what="to compare on, and for the example input")


def axes_of_input(text: str) -> tuple[str, dict[int, str]]:
    """``input_ids=0,1`` as a name and named axes, for argparse.

    An axis that is free in several inputs has the same size in all of them, so it has one name.
    """
    name, _, axes = text.partition("=")
    try:
        return name, {axis: AXIS_NAMES.get(axis, f"axis_{axis}") for axis in map(int, axes.split(","))}
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=AXES such as input_ids=0,1, got {text}") from None


def run(arguments: argparse.Namespace) -> Outcome:
    """Write, run, compare."""
    from sparsebit.cli.data import example_inputs, open_data
    from sparsebit.cli.model import open_compressed
    from sparsebit.export import export_onnx

    model = open_compressed(arguments)
    data = open_data(arguments) if arguments.data else None
    args, kwargs = example_inputs(arguments, model, data)
    arguments.output.absolute().parent.mkdir(parents=True, exist_ok=True)
    with waiting("writing the file" if arguments.no_check else "writing the file, running it and comparing"):
        done = export_onnx(
            model,
            (args, kwargs),
            arguments.output,
            opset_version=arguments.opset,
            check=not arguments.no_check,
            target=arguments.target,
            dynamic_axes=arguments.dynamic and dict(arguments.dynamic),
            fixed_sizes=arguments.fixed_sizes,
        )
    report = done.report
    return Outcome(
        shown=(str(done.exported), *([report] if report else []), *map(str, done.findings)),
        data={
            "output": done.path,
            "bytes": done.exported.bytes,
            "opset": done.exported.opset,
            "target": done.exported.target,
            "inputs": done.exported.input_names,
            "outputs": done.exported.output_names,
            "check": report and report.summary(),
            "findings": done.findings,
        },
    )


COMMAND = Command(
    description="""
Write a quantized, pruned or plain model as an ONNX file with integer weights, run the file in ONNX
Runtime, and compare it with the model tensor by tensor. If the file computes something else, that is
an error and no file is written.
""",
    examples=(
        "sparsebit quantize sparsebit.demo:net --data sparsebit.demo:training_data --output digits-int8",
        "sparsebit export sparsebit.demo:net --quantized digits-int8 --output digits.onnx",
        "sparsebit export sparsebit.demo:net --input 2x1x8x8 --output digits-float.onnx",
        "sparsebit export sparsebit.demo:net --input 2x1x8x8 --dynamic images=0 --output digits-batch.onnx",
    ),
    add_arguments=add_arguments,
    run=run,
    writes="file",
)
