"""Side effects of nodes: writing to tensors, changing state or modes, raising errors.

A pass may delete or move a node only if that cannot be observed. ``is_effect`` answers that for one node,
``overwritten`` says which values do not keep their numbers until the end of the graph.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect

from sparsebit.graph.functional import ModeConstant
from sparsebit.graph.ops import bind, find_op
from sparsebit.graph.ops.spec import nodes_in

_IMPURE_FUNCTIONS: set[object] = getattr(torch.fx.node, "_side_effectful_functions", set())


@has_side_effect
def assign(target: Tensor, value: Tensor) -> Tensor:
    """Overwrite ``target`` with ``value`` and return it: how a graph spells ``self.buffer = value``.

    A parameter is written without gradient, which autograd would refuse; any other target keeps the gradient
    of ``value``, as an in-place write of the model itself would.

    Example:
        >>> buffer = torch.zeros(2)
        >>> assign(buffer, torch.ones(2)) is buffer, buffer
        (True, tensor([1., 1.]))
    """
    if target.is_leaf and target.requires_grad:
        with torch.no_grad():
            target.copy_(value)
    else:
        target.copy_(value)
    return target


def is_effect(gm: GraphModule, node: Node) -> bool:
    """Whether a node has a side effect: it must not be deleted, and nothing may be moved across it.

    The output counts, placeholders do not (they stay for the sake of the call signature). A write in place
    counts unless the tensor it writes is a fresh one that nothing else reads, as in ``relu_(conv(x))``. A
    norm layer that is updating its running statistics counts.
    """
    if node.op in ("placeholder", "get_attr"):
        return False
    if node.op == "output" or node.meta.get("mutates") or _is_impure(node):
        return True
    spec = find_op(gm, node)
    if spec is not None and (
        spec.effect or ("running_mean" in spec.parameters and _updates_statistics(gm, node))
    ):
        return True
    return any(not _is_private(gm, value, node) for value in written_by(gm, node))


def written_by(gm: GraphModule, node: Node) -> tuple[Node, ...]:
    """The nodes whose tensors this node overwrites.

    Example:
        >>> gm = torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(inplace=True)))
        >>> [written.name for node in gm.graph.nodes for written in written_by(gm, node)]
        ['input_1']
    """
    if not node.op.startswith("call_"):
        return ()
    if node.target is assign:
        return tuple(nodes_in(node.args[:1]))
    written = list(nodes_in(node.kwargs.get("out")))
    if isinstance(node.target, torch._ops.OpOverload):
        for position, argument in enumerate(node.target._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
                written += nodes_in(given)
    else:
        call = bind(gm, node)
        if call.inplace if call is not None else _has_inplace_name(node):
            written += list(nodes_in(node.args or list(node.kwargs.values())))[:1]
    if node.meta.get("mutates") and not written:
        return tuple(node.all_input_nodes)  # it writes into one of them, unknown which
    return tuple(written)


def overwritten(gm: GraphModule) -> dict[Node, list[Node]]:
    """The values that later nodes may overwrite, directly or through a view of the same memory, with those nodes.

    Code that keeps such a value beyond its last use has to copy it. Unknown operators may return views.
    """
    parent: dict[Node, Node] = {}

    def root(node: Node) -> Node:
        while parent.setdefault(node, node) is not node:
            parent[node] = node = parent[parent[node]]
        return node

    writes: list[tuple[Node, Node]] = []  # a written value, and the node that writes it, in order
    position: dict[Node, int] = {}
    for index, node in enumerate(gm.graph.nodes):
        position[node] = index
        targets = written_by(gm, node)
        writes += [(target, node) for target in targets]
        for other in node.all_input_nodes if _may_be_view(gm, node) else targets:
            parent[root(node)] = root(other)
    by_memory: dict[Node, list[Node]] = {}
    for target, writer in writes:
        by_memory.setdefault(root(target), []).append(writer)
    later = {
        node: [writer for writer in by_memory.get(root(node), ()) if position[writer] > position[node]]
        for node in position
    }
    return {node: writers for node, writers in later.items() if writers}


def written_tensors(gm: GraphModule) -> list[str]:
    """The parameters and buffers that a call of the graph changes, by name.

    Example:
        >>> class Counts(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.register_buffer("calls", torch.zeros(()))
        ...     def forward(self, x):
        ...         self.calls += 1
        ...         return x
        >>> from sparsebit.graph.capture import capture
        >>> written_tensors(capture(Counts(), torch.ones(1)))
        ['calls']
    """
    if not any(node.op == "get_attr" for node in gm.graph.nodes):  # the parameters of modules are not written
        return []
    return sorted({str(node.target) for node in overwritten(gm) if node.op == "get_attr"})


def read_flag(gm: GraphModule, value: object) -> object:
    """A flag or number in the graph's current mode; None if it is known only at run time.

    A constant is itself. A node that calls a ``ModeConstant`` is the value of the mode its module is in.
    """
    if not isinstance(value, Node):
        return value
    module = gm.get_submodule(str(value.target)) if value.op == "call_module" else None
    return module() if isinstance(module, ModeConstant) else None


def _updates_statistics(gm: GraphModule, node: Node) -> bool:
    call = bind(gm, node)
    if call is None or call.arguments.get("running_mean") is None:
        return False
    if call.module is not None:
        return call.module.training
    names = ("training", "train", "use_input_stats")
    flag = next((call.arguments[name] for name in names if name in call.arguments), False)
    return read_flag(gm, flag) is not False


def _is_private(gm: GraphModule, value: Node, writer: Node) -> bool:
    """Whether a written tensor was created inside the graph and is read only by the writer."""
    while set(value.users) == {writer} and value.op.startswith("call_"):
        sources = value.all_input_nodes if _may_be_view(gm, value) else written_by(gm, value)
        if not sources:
            return True
        if len(sources) > 1:
            return False
        value, writer = sources[0], value
    return False


def _may_be_view(gm: GraphModule, node: Node) -> bool:
    """Whether a node's result may share memory with any of its inputs."""
    if not node.op.startswith("call_"):
        return False
    spec = find_op(gm, node)
    return spec is None or spec.view


def _is_impure(node: Node) -> bool:
    hashable = getattr(type(node.target), "__hash__", None) is not None
    return node.op == "call_function" and hashable and node.target in _IMPURE_FUNCTIONS


def _has_inplace_name(node: Node) -> bool:
    name = str(node.target) if node.op == "call_method" else str(getattr(node.target, "__name__", ""))
    return node.op != "call_module" and name.endswith("_") and not name.endswith("__")
