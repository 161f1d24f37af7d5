"""Run passes in order: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from sparsebit.errors import GraphError
from sparsebit.graph.ops.spec import place
from sparsebit.graph.passes.canonicalize_shape import canonicalize_shape
from sparsebit.graph.passes.fold_batch_norm import fold_batch_norm
from sparsebit.graph.passes.remove_dead_nodes import remove_dead_nodes
from sparsebit.graph.passes.remove_dropout import remove_dropout
from sparsebit.graph.passes.remove_identity import remove_identity
from sparsebit.graph.passes.replace_patterns import replace_patterns
from sparsebit.graph.passes.unbind_to_select import unbind_to_select

Pass = Callable[[GraphModule], int]

# Exact in the current mode of the graph: run on every graph, before everything else.
SIMPLIFY: tuple[Pass, ...] = (
    remove_identity,
    canonicalize_shape,
    unbind_to_select,
    replace_patterns,
    remove_dead_nodes,
)
# Exact in evaluation mode only: for a graph whose batch norms and dropouts will not train again.
FOLD: tuple[Pass, ...] = (remove_dropout, fold_batch_norm, remove_dead_nodes)


def run_passes(gm: GraphModule, passes: Sequence[Pass]) -> dict[str, int]:
    """Run passes in order, checking the graph after each; returns the number of changes each made.

    If a pass fails, the graph module is restored (with new node objects), and the error names the pass.

    Example:
        >>> import torch
        >>> gm = torch.fx.symbolic_trace(nn.Sequential(nn.Identity(), nn.ReLU()))
        >>> run_passes(gm, SIMPLIFY)["remove_identity"]
        1
    """
    try:
        gm.graph.lint()
    except Exception as error:
        raise GraphError(
            f"the graph was invalid before the first pass: {error}",
            hint="check the code that edited it last; every node must come after the nodes it reads",
        ) from error
    before = _Snapshot(gm)
    changes: dict[str, int] = {}
    for apply in passes:
        name = getattr(apply, "__name__", repr(apply))
        try:
            changes[name] = changes.get(name, 0) + apply(gm)
            gm.graph.lint()
        except Exception as error:
            before.restore()
            node = _node_at_work(error.__traceback__)
            raise GraphError(
                f"pass {name!r} failed: {type(error).__name__}: {error}",
                where=place(node) if node is not None else None,
                hint=f"the graph is unchanged; leave {name!r} out to continue without it",
            ) from error
    gm.recompile()
    return changes


class _Snapshot:
    """A graph and the contents of its module, for restoring them."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.graph = _copy_graph(gm.graph)
        scripted = torch.jit.ScriptModule  # a leaf that no pass looks into; its tables cannot be copied
        parts = [module for module in gm.modules() if not isinstance(module, scripted)]
        self.held = [(module, [part.copy() for part in _held_by(module)]) for module in parts]

    def restore(self) -> None:
        for module, held in self.held:
            for current, before in zip(_held_by(module), held, strict=True):
                current.clear()
                current.update(before)
        self.gm.graph = self.graph  # recompiles


def _held_by(module: nn.Module) -> list[Any]:
    return [module._modules, module._parameters, module._buffers, module._non_persistent_buffers_set]


def _copy_graph(graph: Graph) -> Graph:
    """A copy of the nodes; unlike with ``deepcopy`` the code generator is shared, which no pass may change."""
    copied, twins = Graph(tracer_cls=graph._tracer_cls), dict[Node, Node]()
    for node in graph.nodes:
        twins[node] = copied.node_copy(node, twins.__getitem__)
    copied.set_codegen(graph._codegen)
    return copied


def _node_at_work(trace: TracebackType | None) -> Node | None:
    """The node that the innermost frame of a pass was processing, found among its local variables."""
    found: Node | None = None
    while trace is not None:
        names = trace.tb_frame.f_locals
        ours = names.get("node") if isinstance(names.get("node"), Node) else None
        found = ours or next((value for value in names.values() if isinstance(value, Node)), None) or found
        trace = trace.tb_next
    return found
