"""The share of a graph's operators that are in the operator table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from sparsebit.display import in_notebook
from sparsebit.graph.ops.binding import bind
from sparsebit.graph.ops.estimate import estimate_macs
from sparsebit.graph.ops.lookup import target_key
from sparsebit.graph.ops.spec import place


@dataclass(frozen=True, kw_only=True)
class UnknownOp:
    """One operator that is not in the table: it stays in float and its channels are not pruned."""

    name: str
    count: int
    example: str  # where the first of them is
    macs: int  # estimated, for all of them together


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """Known and unknown nodes (those that call something), and what share of the work is known.

    ``known_macs`` and ``macs`` are None for a graph without recorded shapes.
    """

    known: int
    nodes: int
    known_macs: int | None
    macs: int | None
    unknown: tuple[UnknownOp, ...]

    _repr_html_ = in_notebook

    @property
    def node_share(self) -> float:
        """Known nodes, from 0 to 1."""
        return self.known / self.nodes if self.nodes else 1.0

    @property
    def mac_share(self) -> float | None:
        """Multiply-accumulates in known nodes, from 0 to 1; those of unknown nodes are estimated."""
        if self.macs is None or self.known_macs is None:
            return None
        return self.known_macs / self.macs if self.macs else 1.0

    def __str__(self) -> str:
        share = self.mac_share
        work = "MACs not counted (no shapes recorded)" if share is None else f"{share:.2%} of the MACs"
        head = f"operators known: {self.known} of {self.nodes} nodes ({self.node_share:.2%}), {work}"
        unknown = (f"  unknown: {op.name} x{op.count}, first at {op.example}" for op in self.unknown)
        return "\n".join([head, *unknown])


def coverage(gm: GraphModule) -> Coverage:
    """Count the nodes whose operator is known, and the multiply-accumulates in them."""
    calls = [node for node in gm.graph.nodes if node.op in ("call_function", "call_module", "call_method")]
    recorded = all("value" in node.meta for node in calls)
    known = known_macs = unknown_macs = 0
    unknown_nodes: dict[str, list[Node]] = defaultdict(list)
    for node in calls:
        call = bind(gm, node)
        if call is None:
            unknown_nodes[target_name(gm, node)].append(node)
            continue
        known += 1
        known_macs += call.macs if recorded else 0
    unknown = []
    for name, nodes in sorted(unknown_nodes.items(), key=lambda item: -len(item[1])):
        macs = sum(estimate_macs(gm, node) for node in nodes) if recorded else 0
        unknown_macs += macs
        unknown.append(UnknownOp(name=name, count=len(nodes), example=place(nodes[0]), macs=macs))
    return Coverage(
        known=known,
        nodes=len(calls),
        known_macs=known_macs if recorded else None,
        macs=known_macs + unknown_macs if recorded else None,
        unknown=tuple(unknown),
    )


def target_name(gm: GraphModule, node: Node) -> str:
    """A readable name of what a node calls: a class or function with its package."""
    if node.op == "call_method":
        return f"torch.Tensor.{node.target}"
    target: object = (
        type(gm.get_submodule(str(node.target))) if node.op == "call_module" else target_key(node.target)
    )
    name = getattr(target, "__qualname__", None) or getattr(target, "__name__", None)
    package = getattr(target, "__module__", None)
    return f"{package}.{name}" if package and name else str(name or target)
