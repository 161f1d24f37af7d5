"""Put the quantizers of a plan on the edges of a graph."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from sparsebit.config import QConfig, Side, TensorSpec
from sparsebit.errors import GraphError, PlugInError, running_plug_in
from sparsebit.graph.ops import bind, op_name
from sparsebit.graph.ops.spec import nodes_in
from sparsebit.graph.passes.edit import set_module, shallow_copy
from sparsebit.numerics import Layout
from sparsebit.quantization.modules.qmodules import QuantOpr, quantized_leaf, registered_for, show_inputs
from sparsebit.quantization.plan import PlannedTensor, QuantPlan
from sparsebit.quantization.plan.layers import is_skipped, names_of
from sparsebit.quantization.quantizers import QUANTIZERS, Quantizer

HOME = "quantizers"  # the part of the graph module that holds those of activations


def make_quantizer(name: str, side: Side, spec: TensorSpec, layout: Layout | None = None) -> Quantizer:
    """The quantizer for a spec; ``register_quantizer`` adds kinds."""
    made: Quantizer = QUANTIZERS.make(spec.quantizer, name, side, spec, layout)
    return made


def replace_registered(gm: GraphModule, config: QConfig) -> tuple[str, ...]:
    """Replace operators by the user's registered classes; returns the nodes.

    A ``QuantOpr`` that is already in the model is replaced by a copy.
    """
    replaced = []
    for node in list(gm.graph.nodes):
        if node.op == "call_module" and isinstance(gm.get_submodule(str(node.target)), QuantOpr):
            set_module(gm, str(node.target), shallow_copy(gm.get_submodule(str(node.target))))
            replaced.append(node.name)
            continue
        kind = registered_for(gm, node)
        if kind is None or is_skipped(node, config):
            continue
        if node.op == "call_module":
            path, source = str(node.target), gm.get_submodule(str(node.target))
            set_module(gm, path, _make(kind, source, config))
        else:
            path = f"{_home(gm)}_{node.name}"
            set_module(gm, path, _make(kind, node, config))
            tensors = tuple(nodes_in(node.args)) + tuple(nodes_in(tuple(node.kwargs.values())))
            with gm.graph.inserting_before(node):
                new = gm.graph.call_module(path, tensors)
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            gm.graph.erase_node(node)
            node = new
        replaced.append(node.name)
    if replaced:
        gm.recompile()
    return tuple(replaced)


def _make(kind: type[nn.Module], source: nn.Module | Node, config: QConfig) -> nn.Module:
    """A user's class in place of an operator."""
    with running_plug_in(f"{kind.__qualname__} cannot be made for {source!r:.80}", kind):
        made = kind(source, config)
    if not hasattr(made, "_modules"):
        raise PlugInError(
            f"{kind.__qualname__}.__init__ does not call the one of its base class",
            hint="begin it with super().__init__()",
        )
    return made


def build_own_quantizers(gm: GraphModule, config: QConfig, nodes: tuple[str, ...]) -> None:
    """Give the registered operators the quantizers that their base class declares."""
    by_name = {node.name: node for node in gm.graph.nodes}
    for name in nodes:
        module = gm.get_submodule(str(by_name[name].target))
        if not isinstance(module, QuantOpr):
            continue
        call = bind(gm, by_name[name])
        names, op = names_of(by_name[name], call), call.placed_as if call is not None else None
        spec = config.spec_for("A", names=names, op=op)
        module.input_quantizer = make_quantizer(f"{name}.input", "A", spec)
        if not spec.enabled:
            module.input_quantizer.set_fake_fused()
        module.weight_quantizer = None
        if module.weight is not None:
            spec = config.spec_for("W", names=names, op=op)
            module.weight_quantizer = make_quantizer(f"{name}.weight", "W", spec)
            if not spec.enabled:
                module.weight_quantizer.set_fake_fused()


def insert_quantizers(gm: GraphModule, plan: QuantPlan) -> dict[str, Quantizer]:
    """Insert every quantizer of a plan; returns them by the names of their tensors.

    Those of activations become ``call_module`` nodes after the tensor; those of weights go into the leaf that holds
    the weight, or onto the ``get_attr`` of a weight that a function uses.
    """
    nodes = {node.name: node for node in gm.graph.nodes}
    home, made = _home(gm), dict[str, Quantizer]()
    gm.add_module(home, nn.Module())
    for tensor in plan.tensors:
        quantizer = made[tensor.name] = make_quantizer(tensor.name, tensor.side, tensor.spec, tensor.layout)
        if tensor.side == "W":
            _insert_weight(gm, tensor, quantizer, nodes, home)
        else:
            source, readers = _find(nodes, tensor.producer), [_find(nodes, name) for name in tensor.readers]
            _insert_node(gm, source, readers, quantizer, f"{home}.{source.name}_")
    _show_inputs(gm, plan, made, nodes)
    gm.graph.lint()
    gm.recompile()
    return made


def _insert_weight(
    gm: GraphModule, tensor: PlannedTensor, quantizer: Quantizer, nodes: dict[str, Node], home: str
) -> None:
    readers = [_find(nodes, name) for name in tensor.readers]
    for reader in readers:
        if reader.op == "call_module":
            path = str(reader.target)
            leaf = quantized_leaf(gm.get_submodule(path), op_name(gm, reader), quantizer)
            set_module(gm, path, leaf)
    functions = [reader for reader in readers if reader.op != "call_module"]
    if functions:
        source = next(n for n in nodes.values() if n.op == "get_attr" and n.target == tensor.producer)
        _insert_node(gm, source, functions, quantizer, f"{home}.{source.name}_weight")


def _insert_node(gm: GraphModule, source: Node, readers: list[Node], quantizer: Quantizer, path: str) -> None:
    gm.get_submodule(path.rpartition(".")[0]).add_module(path.rpartition(".")[2], quantizer)
    meta: dict[str, Any] = {
        key: source.meta[key] for key in ("value", "module_path", "source") if key in source.meta
    }
    insert_call(gm, source, readers, path, f"{source.name}_quantizer", meta)


def insert_call(
    gm: GraphModule, source: Node, readers: list[Node], path: str, name: str, meta: dict[str, Any]
) -> None:
    """Make ``readers`` read the result of the module at a path for ``source``; the call comes after all inputs."""
    behind = source
    while behind.op in ("placeholder", "get_attr") and behind.next.op in ("placeholder", "get_attr"):
        behind = behind.next
    with gm.graph.inserting_after(behind):
        node = gm.graph.create_node("call_module", path, (source,), {}, name=name)
    node.meta.update(meta)
    for reader in readers:
        reader.replace_input_with(source, node)


def _show_inputs(
    gm: GraphModule, plan: QuantPlan, made: dict[str, Quantizer], nodes: dict[str, Node]
) -> None:
    reads: dict[str, list[Quantizer]] = {}
    for edge in plan.edges:
        if edge.tensor is not None:
            reads.setdefault(edge.consumer, []).append(made[edge.tensor])
    for name, quantizers in reads.items():
        node = _find(nodes, name)
        if node.op == "call_module":
            path = str(node.target)
            leaf = quantized_leaf(gm.get_submodule(path), None, None)
            set_module(gm, path, leaf)
            show_inputs(leaf, tuple(dict.fromkeys(quantizers)))


def _find(nodes: dict[str, Node], name: str) -> Node:
    if name not in nodes:
        raise GraphError(
            f"the plan names {name!r}, which the graph does not have",
            hint="a plan fits only the graph it was made for; make a new one",
        )
    return nodes[name]


def _home(gm: GraphModule) -> str:
    name = HOME
    while hasattr(gm, name):
        name = f"_{name}"
    return name
