"""``sparsebit prune``: remove channels or single weights from a model."""

from __future__ import annotations

import argparse

from sparsebit.cli.arguments import add_config, add_data, add_input, add_model, add_output, add_test
from sparsebit.cli.command import BLANK, Command, Outcome, command_to_copy

DEFAULT = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit prune``."""
    add_model(parser)
    add_config(
        parser,
        what="a YAML file; by default half of the channels are removed, those with the smallest weights",
        key="SPARSER.RATIO=0.3",
    )
    add_output(parser, "folder to write the pruned model to")
    add_input(parser)
    parser.add_argument(
        "--loss",
        metavar="NAME",
        help="file.py:function of (output, labels), for criteria that need gradients; cross entropy by default",
    )
    add_data(parser, required=False, what="for criteria that need some, and for the example input")
    add_test(parser)


def check(arguments: argparse.Namespace) -> None:
    """The config."""
    from sparsebit.config import load_sconfig

    load_sconfig(arguments.config or DEFAULT, arguments.overrides)


def run(arguments: argparse.Namespace) -> Outcome:
    """Choose, prune, measure and save."""
    from torch.nn import functional

    from sparsebit.cli.data import example_inputs, open_data
    from sparsebit.cli.metric import Accuracy
    from sparsebit.cli.model import open_model, require_device
    from sparsebit.cli.reference import blamed_on, resolve_function
    from sparsebit.sparse import SparseModel, parse_sconfig, save

    config = parse_sconfig(arguments.config or DEFAULT, arguments.overrides)
    require_device(config.DEVICE)
    loss = resolve_function(arguments.loss, "loss") if arguments.loss else functional.cross_entropy
    model = open_model(arguments)
    data = open_data(arguments) if arguments.data else None
    accuracy = Accuracy(arguments)
    accuracy.add(model, "measuring dense")
    smodel = SparseModel(
        model, config, *example_inputs(arguments, model, data if data is not None else accuracy.data)
    ).to(config.DEVICE)
    with blamed_on("the model or its loss, called with the data,"):
        smodel.calc_params(data, loss)
    small = smodel.shrink()
    accuracy.add(small, "measuring pruned")
    save(small, arguments.output)
    report = smodel.report()
    next_step = command_to_copy(
        "quantize",
        arguments.model,
        plug_in=arguments.plug_in,
        weights=arguments.weights,
        pruned=[*arguments.pruned, arguments.output],
        data=BLANK,
        output=BLANK,
    )
    return Outcome(
        shown=(
            report.table(),
            *accuracy.rows(),
            f"written: {arguments.output}",
            f"next:    train it briefly to recover accuracy, then {next_step}; docs/how-to/prune.md shows how",
        ),
        data={
            "output": arguments.output,
            "kind": report.kind,
            "layers": report.rows,
            "params": (report.params_before, report.params_after),
            "macs": (report.macs_before, report.macs_after),
            "accuracy": accuracy.pair,
        },
    )


COMMAND = Command(
    description="""
Find the channels that must be removed together (residuals, norms, heads), score them, and remove the
fraction that the config sets. The result is an ordinary, smaller model, saved as a folder that
--pruned of the other commands reads. Pruning costs accuracy until the model is trained again.
""",
    examples=(
        "sparsebit prune sparsebit.demo:net --input 2x1x8x8 --set SPARSER.RATIO=0.25 --output digits-small",
        "sparsebit prune sparsebit.demo:net --data sparsebit.demo:training_data --batches 4 "
        "--set SPARSER.STRATEGY=taylor --set SPARSER.RATIO=0.3 --test sparsebit.demo:held_out_data "
        "--output digits-taylor",
    ),
    add_arguments=add_arguments,
    check=check,
    run=run,
    writes="folder",
)
