"""``sparsebit quantize``: quantize a model and calibrate it."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from sparsebit.cli.arguments import (
    add_config,
    add_data,
    add_input,
    add_model,
    add_output,
    add_report,
    add_test,
)
from sparsebit.cli.command import BLANK, Command, Outcome, command_to_copy
from sparsebit.errors import ArtifactError
from sparsebit.storage import remove_steps, require_place
from sparsebit.storage.place import require_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit quantize``."""
    from sparsebit.config import preset_names

    add_model(parser)
    presets = ", ".join(preset_names())
    add_config(
        parser,
        what=f"a YAML file or a preset: {presets}",
        key="W.QUANTIZER.BIT=4",
        default="int8_onnxruntime",
    )
    add_output(parser, "folder to write the quantized model to")
    add_input(parser)
    add_report(parser)
    add_data(parser, what="to calibrate with; a few hundred samples are enough")
    add_test(parser)


def check(arguments: argparse.Namespace) -> None:
    """Check the config, and the place for finished steps."""
    from sparsebit.config import load_qconfig

    load_qconfig(arguments.config, arguments.overrides)
    require_place(_steps(arguments) / "step")


def _steps(arguments: argparse.Namespace) -> Path:
    """The folder in which finished recovery steps are kept for --resume."""
    output = require_name(arguments.output)
    return output.with_name(f".{output.name}.steps")


def run(arguments: argparse.Namespace) -> Outcome:
    """Quantize, calibrate, measure and save."""
    from sparsebit.cli.data import example_inputs, open_data
    from sparsebit.cli.metric import Accuracy
    from sparsebit.cli.model import open_model, require_device
    from sparsebit.cli.reference import blamed_on
    from sparsebit.quantization import QuantModel, parse_qconfig
    from sparsebit.report import collect, save_report

    config = parse_qconfig(arguments.config, arguments.overrides)
    steps = _steps(arguments)
    require_device(config.DEVICE)
    model, data = open_model(arguments), open_data(arguments)
    accuracy = Accuracy(arguments)
    accuracy.add(model, "measuring float")
    qmodel = QuantModel(model, config, *example_inputs(arguments, model, data)).to(config.DEVICE)
    if not arguments.resume:
        remove_steps(steps)
    with blamed_on("the model, called with the data,"):
        qmodel.calibrate(data, folder=steps)
    qmodel.set_quant(w_quant=True, a_quant=True)
    accuracy.add(qmodel, "measuring quantized")
    qmodel.save(arguments.output)
    with contextlib.suppress(ArtifactError):  # the same run was started again meanwhile, and needs them
        remove_steps(steps)
    if arguments.report:
        save_report(arguments.report, collect(qmodel, data, name=arguments.model, accuracy=accuracy.pair))
    plan = qmodel.plan
    left = plan.left_float()
    next_step = command_to_copy(
        "export",
        arguments.model,
        plug_in=arguments.plug_in,
        weights=arguments.weights,
        pruned=arguments.pruned,
        quantized=arguments.output,
        data=BLANK,
        output="model.onnx",
    )
    written = [str(path) for path in (arguments.output, arguments.report) if path]
    return Outcome(
        shown=(
            f"quantized for {plan.target}: {len(plan.weights())} weights, {len(plan.activations())} activations;"
            f" {len(left)} {'input' if len(left) == 1 else 'inputs'} of operators in float",
            *(f"  float: {edge.consumer} <- {edge.source}: {edge.reason}" for edge in left[:8]),
            *accuracy.rows(),
            f"written: {', '.join(written)}",
            f"next:    {next_step}",
        ),
        data={
            "output": arguments.output,
            "report": arguments.report,
            "target": plan.target,
            "weights": [{"name": t.name, "codes": t.spec.codes, "reason": t.reason} for t in plan.weights()],
            "activations": [
                {"name": t.name, "codes": t.spec.codes, "reason": t.reason} for t in plan.activations()
            ],
            "float": [{"operator": e.consumer, "input": e.source, "reason": e.reason} for e in left],
            "accuracy": accuracy.pair,
        },
    )


COMMAND = Command(
    description="""
Decide which tensors of a model are quantized for a runtime, measure their ranges on some data, and
save the result: a folder of JSON and safetensors that `export`, `check` and `profile` read. With
--test, accuracy is measured before and after. The model's code and weights are not changed.
""",
    examples=(
        "sparsebit quantize sparsebit.demo:net --data sparsebit.demo:training_data --output digits-int8",
        "sparsebit quantize sparsebit.demo:net --data sparsebit.demo:training_data --config w4a8 --set FIRST_LAST=8 "
        "--test sparsebit.demo:held_out_data --report w4a8.html --output digits-w4a8",
    ),
    add_arguments=add_arguments,
    check=check,
    run=run,
    writes="folder",
    resume="continue an interrupted run of long recovery steps (SCHEDULE.RECOVERY)",
)
