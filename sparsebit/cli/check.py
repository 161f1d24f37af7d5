"""``sparsebit check``: whether a file still computes the same as its model."""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsebit.cli.arguments import add_data, add_input, add_model, add_runtime
from sparsebit.cli.command import Command, Outcome, UsageError
from sparsebit.progress import waiting

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from sparsebit.export import Exported
    from sparsebit.runtime import OnnxFile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit check``."""
    parser.add_argument("file", metavar="FILE", type=Path, help="the ONNX file")
    add_model(parser, quantized=True)
    add_input(parser)
    add_runtime(parser)
    add_data(parser, required=False, what="to compare on")


def run(arguments: argparse.Namespace) -> Outcome:
    """Run the file and the model on the same inputs; the exit code is 1 if they differ."""
    from sparsebit.batches import ModelInputs, few
    from sparsebit.cli.data import example_inputs, open_data
    from sparsebit.cli.model import open_compressed
    from sparsebit.cli.reference import blamed_on
    from sparsebit.export import check
    from sparsebit.export.onnx_export import graph_of
    from sparsebit.runtime import OnnxFile

    file = OnnxFile(arguments.file, runtime=arguments.runtime, isolated=True)
    model = open_compressed(arguments)
    data = open_data(arguments) if arguments.data else None
    args, kwargs = example_inputs(arguments, model, data)
    graph = graph_of(model, args, kwargs)
    exported = _as_exported(
        file, graph, args, kwargs, str(getattr(getattr(model, "plan", None), "target", "onnxruntime"))
    )
    calls = [(args, kwargs)]
    if data is not None:
        calls = [few(call) for call in ModelInputs(graph, *calls[0]).calls(data, what="reading", shown=None)]
    with (
        waiting("running the file and comparing"),
        blamed_on("the file or the model, called with this input,"),
    ):
        report = check(graph, exported, calls, runtime=arguments.runtime)
    return Outcome(
        shown=(report,),
        data=report.summary(),
        exit_code=0 if report.ok else 1,
    )


def _as_exported(file: OnnxFile, graph: GraphModule, args: Any, kwargs: Any, target: str) -> Exported:
    """The record of exporting the model again, with the given file in place of the new one."""
    from sparsebit.export import export_graph

    opset = _opset(file.path)
    with tempfile.TemporaryDirectory() as folder:
        again = export_graph(graph, args, kwargs, Path(folder) / "model.onnx", opset=opset, target=target)
    if len(file.input_names) != len(again.input_names) or len(file.output_names) != len(again.output_names):
        raise UsageError(
            f"{file.path} was exported from another model",
            expected=f"{len(again.input_names)} inputs and {len(again.output_names)} outputs",
            got=f"{len(file.input_names)} and {len(file.output_names)}",
        )
    return dataclasses.replace(
        again,
        path=file.path,
        files=(file.path,),
        bytes=file.bytes,
        input_names=file.input_names,
        output_names=file.output_names,
    )


def _opset(path: Path) -> int | None:
    import onnx

    model = onnx.load(str(path), load_external_data=False)
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)


COMMAND = Command(
    description="""
Run an exported file on the same inputs as the model it came from, and compare quantized values
and outputs tensor by tensor. Also shows which operators run on integers in the runtime, and why others
do not. The exit code is 1 if the file differs.
""",
    examples=(
        "sparsebit quantize sparsebit.demo:net --data sparsebit.demo:training_data --output digits-int8",
        "sparsebit export sparsebit.demo:net --quantized digits-int8 --output digits.onnx",
        "sparsebit check digits.onnx sparsebit.demo:net --quantized digits-int8 "
        "--data sparsebit.demo:held_out_data --batches 2",
    ),
    add_arguments=add_arguments,
    run=run,
)
