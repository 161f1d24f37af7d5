"""``sparsebit compress``: find the recipe that meets given goals."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sparsebit.cli.arguments import (
    add_data,
    add_input,
    add_model,
    add_output,
    add_report,
    add_test,
    seconds,
)
from sparsebit.cli.command import BLANK, Command, Outcome, UsageError, command_to_copy
from sparsebit.targets import TARGETS

if TYPE_CHECKING:
    from sparsebit.recipes import Trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit compress``."""
    add_model(parser)
    goals = parser.add_argument_group("goals")
    goals.add_argument("--max-drop", type=float, default=0.01, help="largest loss of the metric (0.01)")
    goals.add_argument("--speedup", type=float, help="required speed-up of one call, such as 2")
    goals.add_argument(
        "--size", type=float, help="a fraction of the float model such as 0.25, or a number of bytes"
    )
    goals.add_argument(
        "--target", choices=tuple(TARGETS), default="onnxruntime", help="runtime (onnxruntime)"
    )
    add_output(parser, "folder for the recipe, the models and every trial")
    add_input(parser)
    parser.add_argument(
        "--time-budget", type=seconds, default=600, metavar="SECONDS", help="time limit for all trials (600)"
    )
    parser.add_argument(
        "--finetune", metavar="NAME", help="file.py:function that trains a pruned model in place"
    )
    parser.add_argument(
        "--prune", metavar="FILE", help="pruning config (YAML) to vary; by default channels are pruned"
    )
    parser.add_argument("--exhaustive", action="store_true", help="continue after the goals are met")
    parser.add_argument("--seed", type=int, default=0, help="random seed (0)")
    add_report(parser)
    add_data(parser, what="to calibrate with, and to measure accuracy with if there is no --test")
    add_test(parser)


def check(arguments: argparse.Namespace) -> None:
    """The pruning config."""
    from sparsebit.config import load_sconfig

    if arguments.prune:
        load_sconfig(arguments.prune)


def run(arguments: argparse.Namespace) -> Outcome:
    """Search, save and show; the exit code is 1 if no recipe meets the goals."""
    from sparsebit.cli.data import example_inputs, open_data
    from sparsebit.cli.metric import accuracy_of, open_metric
    from sparsebit.cli.model import open_model
    from sparsebit.cli.reference import resolve_function
    from sparsebit.config import load_sconfig
    from sparsebit.recipes import Goals, compress
    from sparsebit.report import report_search, save_report

    _refuse_other_search(arguments.output, arguments.resume)
    if not arguments.metric:
        Goals(max_drop=arguments.max_drop).require_share()
    metric, prune = open_metric(arguments), load_sconfig(arguments.prune) if arguments.prune else None
    finetune = resolve_function(arguments.finetune, "function") if arguments.finetune else None
    model, data = open_model(arguments), open_data(arguments)
    test = open_data(arguments, arguments.test) if arguments.test else data
    args, kwargs = example_inputs(arguments, model, data)
    found = compress(
        model,
        data,
        target=arguments.target,
        max_drop=arguments.max_drop,
        speedup=arguments.speedup,
        size=arguments.size,
        metric=lambda candidate: accuracy_of(candidate, test, metric, "measuring"),
        example_inputs=args or None,
        example_kwargs=kwargs or None,
        finetune=finetune,
        prune=prune,
        time_budget=arguments.time_budget,
        exhaustive=arguments.exhaustive,
        folder=arguments.output,
        seed=arguments.seed,
        on_trial=_teller(arguments.time_budget),
    )
    if arguments.report:
        save_report(arguments.report, report_search(found, data, name=arguments.model))
    written = [str(path) for path in (arguments.output, arguments.report) if path]
    return Outcome(
        shown=(found, f"written: {', '.join(written)}", _next(arguments)),
        data={
            **found.to_dict(),
            "output": arguments.output,
            "report": arguments.report,
            "recipe": found.yaml,
        },
        exit_code=0 if found.met else 1,
    )


def _next(arguments: argparse.Namespace) -> str:
    made: Path = arguments.output
    words = command_to_copy(
        "export",
        arguments.model,
        plug_in=arguments.plug_in,
        weights=arguments.weights,
        pruned=[*arguments.pruned, *([made / "pruned"] if (made / "pruned").is_dir() else [])],
        quantized=made / "quantized",
        data=BLANK,
        output="model.onnx",
    )
    return f"next:    {words}"


def _refuse_other_search(folder: Path, resume: bool) -> None:
    from sparsebit.recipes.state import STATE

    begun = (folder / STATE).is_file()
    if begun and not resume:
        raise UsageError(
            f"{folder} holds a search", hint="add --resume to continue it, or choose another folder"
        )
    mine = [entry for entry in folder.iterdir() if not entry.name.startswith(".")] if folder.is_dir() else []
    if mine and not begun:
        raise UsageError(f"{folder} exists and contains other files", hint="choose an empty or a new folder")


def _teller(budget: float) -> Callable[[Trial], None]:
    """A function that shows one line for each trial, with the time left."""
    started = time.monotonic()

    def tell(trial: Trial) -> None:
        left = max(0.0, budget - (time.monotonic() - started))
        said = trial.failed if trial.measured is None else f"metric {trial.measured.metric:.4g}"
        sys.stderr.write(f"{trial.name}: {said}; at most {left:.0f} s left\n")

    return tell


COMMAND = Command(
    description="""
Say how much accuracy may be lost and how small or fast the model must be. Recipes are tried, cheapest
first, until one meets the goals or the time limit is reached. Writes the best model, the recipe that
reproduces it as YAML, and all trials. If the goals cannot be met, it says by how much and why, and
the exit code is 1. --resume continues an interrupted search.
""",
    examples=(
        "sparsebit compress sparsebit.demo:net --data sparsebit.demo:training_data --batches 6 "
        "--test sparsebit.demo:held_out_data --max-drop 0.02 --size 0.3 --time-budget 60 "
        "--report compressed.html --output digits-found",
    ),
    add_arguments=add_arguments,
    check=check,
    run=run,
    resume="continue the search in the output folder",
    writes="files",
)
