"""``sparsebit capture``: look at a model as a graph."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from sparsebit.cli.arguments import add_data, add_input, add_model, add_output
from sparsebit.cli.command import Command, Outcome, UsageError
from sparsebit.progress import waiting
from sparsebit.storage import write_text

if TYPE_CHECKING:
    from torch.fx import GraphModule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``sparsebit capture``."""
    add_model(parser)
    add_input(parser)
    parser.add_argument(
        "--frontend",
        choices=("auto", "record", "symbolic", "exported"),
        default="auto",
        help="how to capture the model (auto)",
    )
    parser.add_argument("--simplify", action="store_true", help="remove identities and fold batch norm first")
    add_output(parser, "also write the graph: a diagram (.mmd, Mermaid) or a table (.txt)", required=False)
    add_data(parser, required=False, what="to take the example input from")


def check(arguments: argparse.Namespace) -> None:
    """The kind of file to write."""
    if arguments.output and arguments.output.suffix not in (".mmd", ".txt"):
        raise UsageError(
            f"{arguments.output}: unknown kind of file", expected="a name ending in .mmd or .txt"
        )


def run(arguments: argparse.Namespace) -> Outcome:
    """Record the model and show its nodes, what is known of them, and what they cost."""
    from sparsebit.analysis import cost
    from sparsebit.cli.data import example_inputs, open_data
    from sparsebit.cli.model import open_model
    from sparsebit.graph import show
    from sparsebit.graph.capture import capture
    from sparsebit.graph.ops import coverage
    from sparsebit.graph.passes import FOLD, SIMPLIFY, run_passes

    model = open_model(arguments)
    traced = arguments.frontend == "symbolic" and not arguments.input and not arguments.data
    data = open_data(arguments) if arguments.data else None
    args, kwargs = ((), {}) if traced else example_inputs(arguments, model, data)
    with waiting("capturing"):
        graph = capture(model, args, kwargs, frontend=arguments.frontend)
    if arguments.simplify:
        run_passes(graph, SIMPLIFY + FOLD)
    known, costs = coverage(graph), None if traced else cost(graph)
    if arguments.output:
        write_text(
            arguments.output, show.mermaid(graph) if arguments.output.suffix == ".mmd" else show.table(graph)
        )
    table = show.to_rich_table(graph, columns=("name", "op", "inputs", "shape", "params"))
    notes = [str(note) for note in graph.capture_report.notes]
    written = [f"written: {arguments.output}"] if arguments.output else []
    return Outcome(
        shown=(table, str(known), *([str(costs)] if costs else []), *notes, *written),
        data={
            "nodes": [_node(graph, node) for node in graph.graph.nodes],
            "coverage": {"known": known.known, "nodes": known.nodes, "unknown": known.unknown},
            "cost": {"params": costs.params, "macs": costs.macs, "weight_bytes": costs.weight_bytes}
            if costs
            else None,
            "notes": notes,
            "output": arguments.output,
        },
    )


def _node(graph: GraphModule, node: Any) -> dict[str, Any]:
    from sparsebit.graph.ops import op_name

    value = node.meta.get("value")
    shape = list(value.shape) if hasattr(value, "shape") else None
    inputs = [source.name for source in node.all_input_nodes]
    return {"name": node.name, "op": op_name(graph, node) or node.op, "inputs": inputs, "shape": shape}


COMMAND = Command(
    description="""
Run a model once on an example input, record its operations as a graph, and show it: one line per
node, which operators are known, and the cost of one forward pass. The model is not changed. All other
commands start with this step, so try it first.
""",
    examples=(
        "sparsebit capture sparsebit.demo:net --input 1x1x8x8",
        "sparsebit capture sparsebit.demo:net --input 1x1x8x8 --simplify --output digits.mmd",
    ),
    add_arguments=add_arguments,
    check=check,
    run=run,
    writes="file",
)
