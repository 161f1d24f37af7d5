"""Parameters, multiply-accumulates and bytes of a captured model, node by node."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table
from torch.fx import GraphModule

from sparsebit.display import in_notebook, short_bytes, short_number
from sparsebit.errors import GraphError, with_article
from sparsebit.graph.ops.binding import bind
from sparsebit.graph.ops.estimate import estimate_macs, weights_of
from sparsebit.graph.ops.spec import place
from sparsebit.graph.value import tensors_in

UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """One node.

    A parameter is counted at the first node that reads it, so the columns add up even if weights are shared.
    """

    name: str
    op: str
    """Canonical operator, or "unknown": then ``macs`` is an estimate."""
    module: str
    """Dotted name of the module called, or of the one whose forward contains the node."""
    params: int
    macs: int
    weight_bytes: int
    output_bytes: int


@dataclass(frozen=True, kw_only=True)
class CostReport:
    """What one forward pass costs at the recorded input sizes.

    Only contractions have multiply-accumulates (convolutions, linear layers, matrix products, attention,
    recurrent layers); twice ``macs`` is what ``torch.utils.flop_counter`` counts.
    """

    rows: tuple[CostRow, ...]

    _repr_html_ = in_notebook

    @property
    def params(self) -> int:
        """Parameter elements the graph reads, shared ones once."""
        return sum(row.params for row in self.rows)

    @property
    def macs(self) -> int:
        """Multiply-accumulates, with the estimates for unknown operators."""
        return sum(row.macs for row in self.rows)

    @property
    def weight_bytes(self) -> int:
        """Bytes of those parameters."""
        return sum(row.weight_bytes for row in self.rows)

    @property
    def output_bytes(self) -> int:
        """Bytes of all results, views and copies alike."""
        return sum(row.output_bytes for row in self.rows)

    @property
    def unknown(self) -> tuple[CostRow, ...]:
        """The rows whose operator is not in the table."""
        return tuple(row for row in self.rows if row.op == UNKNOWN)

    def table(self) -> Table:
        """For a terminal: the nodes that compute or hold parameters, then the totals."""
        shown = [row for row in self.rows if row.macs or row.params or row.op == UNKNOWN]
        table = Table(show_footer=True)
        columns: tuple[tuple[str, str], ...] = (
            ("node", "total"),
            ("operator", f"{len(self.rows)} nodes"),
            ("module", ""),
            ("params", short_number(self.params)),
            ("MACs", short_number(self.macs)),
            ("weights", short_bytes(self.weight_bytes)),
            ("output", short_bytes(self.output_bytes)),
        )
        for index, (header, footer) in enumerate(columns):
            table.add_column(header, footer=footer, justify="left" if index < 3 else "right")
        for row in shown:
            macs = ("~" if row.op == UNKNOWN and row.macs else "") + short_number(row.macs)
            sizes = (short_bytes(row.weight_bytes), short_bytes(row.output_bytes))
            table.add_row(row.name, row.op, row.module, short_number(row.params), macs, *sizes)
        return table

    def __str__(self) -> str:
        text = (
            f"{short_number(self.params)} parameters ({short_bytes(self.weight_bytes)}),"
            f" {short_number(self.macs)} MACs, {short_bytes(self.output_bytes)} of results"
        )
        names = ", ".join(row.name for row in self.unknown)
        return f"{text}; estimated, because unknown: {names}" if names else text


def cost(gm: GraphModule) -> CostReport:
    """Count what every node of a captured model costs.

    Raises ``GraphError`` if no shapes are recorded: they come from the example inputs of ``capture``.
    """
    if not isinstance(gm, GraphModule):
        raise GraphError(
            "only a captured model has a cost",
            got=with_article(type(gm).__name__),
            hint="pass sparsebit.capture(model, inputs)",
        )
    counted: set[int] = set()
    rows = []
    for node in gm.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        if "value" not in node.meta:
            raise GraphError(
                "the cost of a node depends on its shape, and no shape is recorded",
                where=place(node),
                hint="capture the model with example inputs: sparsebit.capture(model, inputs)",
            )
        fresh = {id(p): p for _, p in weights_of(gm, node) if id(p) not in counted}
        counted |= fresh.keys()
        call = bind(gm, node)
        rows.append(
            CostRow(
                name=node.name,
                op=call.spec.name if call else UNKNOWN,
                module=str(node.target if node.op == "call_module" else node.meta.get("module_path") or ""),
                params=sum(parameter.numel() for parameter in fresh.values()),
                macs=call.macs if call else estimate_macs(gm, node),
                weight_bytes=sum(
                    parameter.numel() * parameter.element_size() for parameter in fresh.values()
                ),
                output_bytes=sum(info.nbytes for info in tensors_in(node.meta["value"])),
            )
        )
    return CostReport(rows=tuple(rows))
