"""``sparsebit bench``: time models and files side by side."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from sparsebit.cli.arguments import add_data, add_input, add_runtime, add_weights, positive, seconds
from sparsebit.cli.command import Command, Outcome

if TYPE_CHECKING:
    from sparsebit.batches import Call


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit bench``."""
    parser.add_argument(
        "timed", metavar="MODEL|FILE", nargs="+", help="models, and ONNX files; the first is the baseline"
    )
    add_weights(parser)
    add_input(parser)
    parser.add_argument("--batch", type=positive, default=1, metavar="N", help="samples per call (1)")
    parser.add_argument("--seconds", type=seconds, default=1.0, help="seconds to spend on each (1)")
    parser.add_argument("--threads", type=positive, metavar="N", help="threads to use; by default all cores")
    add_runtime(parser)
    add_data(parser, required=False, what="to take the input from")


def run(arguments: argparse.Namespace) -> Outcome:
    """Time each in turn."""
    import torch
    from rich.table import Table

    from sparsebit.cli.data import open_data
    from sparsebit.cli.reference import blamed_on
    from sparsebit.display import short_bytes
    from sparsebit.export.proof.report import FLOAT_BETWEEN_INTEGERS
    from sparsebit.runtime import compare_latency

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    calls: dict[str, Callable[[], object]] = {}
    sizes: dict[str, int] = {}
    data = open_data(arguments) if arguments.data else None
    for what in arguments.timed:
        calls[what], sizes[what] = _call(what, arguments, data)
    for what, call in calls.items():
        with blamed_on(f"{what}, called with this input,"):
            call()
    times = compare_latency(calls, seconds=arguments.seconds)
    first = arguments.timed[0]
    samples = (
        "the given samples" if arguments.input else f"{arguments.batch} sample{'s' * (arguments.batch > 1)}"
    )
    table = Table(title=f"one call with {samples}, ms")
    for index, head in enumerate(("what", "median", "10 %", "90 %", "speed", "size")):
        table.add_column(head, justify="right" if index else "left")
    rows = []
    for name, time in times.items():
        cells = (f"{1e3 * value:.3f}" for value in (time.median, time.low, time.high))
        ratio = times.speedup(name, first)
        table.add_row(name, *cells, "1" if name == first else str(ratio), short_bytes(sizes[name]))
        speed = {"speedup": ratio.median, "speedup_low": ratio.low, "speedup_high": ratio.high}
        rows.append({"what": name, **vars(time), **speed, "noisy": ratio.noisy, "bytes": sizes[name]})
    advice = []
    if any(row["noisy"] for row in rows):
        advice.append("The rounds differ too much for a ratio: stop other programs, or raise --seconds.")
    if slower := [row["what"] for row in rows if row["speedup_high"] < 1 and row["what"].endswith(".onnx")]:
        advice.append(
            f"{', '.join(slower)}: slower than {first}. In a quantized file, {FLOAT_BETWEEN_INTEGERS}."
        )
    return Outcome(shown=(table, *advice), data={"rows": rows, "unit": "seconds"})


def _call(what: str, arguments: argparse.Namespace, data: Any) -> tuple[Callable[[], object], int]:
    """A function that runs a model or a file once, and its bytes."""
    import torch

    from sparsebit.batches import example_from
    from sparsebit.cli.data import example_inputs, first, from_shapes
    from sparsebit.cli.model import open_model
    from sparsebit.cli.reference import blamed_on
    from sparsebit.runtime import OnnxFile

    if what.endswith(".onnx"):
        tried = OnnxFile(what, threads=arguments.threads, runtime=arguments.runtime, isolated=True)
        if arguments.input:
            given = from_shapes(arguments.input)
        elif data is not None:
            given = _resized(example_from(None, first(data)), arguments.batch)
        else:
            given = None
        feed = tried.example(arguments.batch) if given is None else tried.feed(*given.args, **given.kwargs)
        with blamed_on(f"{what}, called with this input,"):
            tried.run(feed)  # a runtime that aborts on it ends the child, and not this process
        file = OnnxFile(what, threads=arguments.threads, runtime=arguments.runtime)
        return lambda: file.run(feed), file.bytes
    model = open_model(arguments, what)
    found = example_inputs(arguments, model, data)
    args, kwargs = found if arguments.input else _resized(found, arguments.batch)

    def call() -> object:
        with torch.inference_mode():
            return model(*args, **kwargs)

    return call, sum(p.numel() * p.element_size() for p in model.parameters())


def _resized(example: Call, samples: int) -> Call:
    """The example, repeated or cut to this number of samples."""
    import torch
    import torch.utils._pytree as pytree

    def resize(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.dim():
            return value
        return torch.cat([value] * -(-samples // len(value)))[:samples]

    return type(example)(*pytree.tree_map(resize, tuple(example)))


COMMAND = Command(
    description="""
Call each model (in torch) or ONNX file (in ONNX Runtime) in turn, so that other load on the machine
affects all of them equally. Shows the median and the spread of each, and its speed relative to the
first, with the 10 % and 90 % quantiles of that ratio; if these differ by more than a factor of 2, the
result is "too noisy to tell". Time a quantized model as an exported file: in torch, integers are only
simulated.
""",
    examples=(
        "sparsebit quantize sparsebit.demo:net --data sparsebit.demo:training_data --output digits-int8",
        "sparsebit export sparsebit.demo:net --quantized digits-int8 --output digits.onnx",
        "sparsebit export sparsebit.demo:net --input 2x1x8x8 --output digits-float.onnx",
        "sparsebit bench digits-float.onnx digits.onnx --batch 16 --seconds 0.2",
        "sparsebit bench sparsebit.demo:net digits.onnx --input 16x1x8x8 --seconds 0.2",
    ),
    add_arguments=add_arguments,
    run=run,
)
