"""An exported graph in the normal form: canonical operators, ``torch.nn`` modules as modules, free devices."""

from __future__ import annotations

import operator
from collections import Counter
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparsebit.graph.capture.leaves import is_torch_leaf
from sparsebit.graph.capture.normalize import canonical_aten
from sparsebit.graph.value import TensorInfo, describe, map_items


def convert_graph(exported: fx.GraphModule, owner: nn.Module, modules: dict[str, nn.Module]) -> fx.Graph:
    """The exported graph in normal form: operators canonical, ``torch.nn`` modules back as modules, no guards.

    ``owner`` has the parameters and buffers; whatever else the graph reads is a constant.
    """
    graph: fx.Graph = exported.graph
    constants = 0
    tensors = [*owner.named_parameters(remove_duplicate=False), *owner.named_buffers(remove_duplicate=False)]
    state = {name for name, _ in tensors}
    operators = Counter(_path_of(node) for node in graph.nodes if node.op == "call_function")
    alone = {path: module for path, module in modules.items() if operators[path] == 1}
    for node in list(graph.nodes):
        _describe(node)
        if node.meta.get("mutates") and _writes_privately(node):
            _make_functional(node)
        if node.op == "get_attr" and str(node.target) not in state:
            node.meta["constant"] = attrgetter(str(node.target))(exported)
            prefix = "_submodule" if isinstance(node.meta["constant"], nn.Module) else "_tensor_constant"
            node.target, constants = f"{prefix}{constants}", constants + 1
        elif node.op == "call_function" and _raise_module(node, alone):
            continue
        elif node.op == "call_function":
            _canonicalize(node)
    for node in list(graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            graph.erase_node(node)  # would pin the device and dtype of the example
    _merge_attributes(graph)
    _follow_device(graph)
    return graph


def _describe(node: fx.Node) -> None:
    path, value = _path_of(node), node.meta.get("val")
    overload = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
    results = overload.returns if overload is not None else ()
    node.meta = {
        "value": map_items(value, _plain_shape),
        "module_path": "" if path.startswith("_empty") else path,
        "source": None,
        "fresh": bool(results) and all(result.alias_info is None for result in results),
        **({"input": value} if isinstance(value, Tensor) and node.op == "placeholder" else {}),
        **({"mutates": True} if overload is not None and overload.is_mutable else {}),
    }


def _plain_shape(value: Any) -> Any:
    if isinstance(value, Tensor):
        return TensorInfo(tuple(_hint(size) for size in value.shape), value.dtype)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return _hint(value)
    return describe(value)


def _hint(size: Any) -> Any:
    """The example's value of a symbolic number."""
    node = getattr(size, "node", None)
    return node.hint if node is not None and node.hint is not None else size if isinstance(size, int) else -1


def _writes_privately(node: fx.Node) -> bool:
    """Whether an in-place write changes only a new result that nothing else reads."""
    written = node.args[0] if node.args else None
    return isinstance(written, fx.Node) and set(written.users) == {node} and bool(written.meta.get("fresh"))


def _make_functional(node: fx.Node) -> None:
    assert isinstance(node.target, torch._ops.OpOverload)
    name, overload = node.target._schema.name.partition("::")[2], node.target._overloadname
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    if name.endswith("_") and packet is not None and overload in packet.overloads():
        node.target = getattr(packet, overload)
        node.meta["fresh"] = True
        del node.meta["mutates"]


def _raise_module(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Replace the operator of a ``torch.nn`` module by a call of the module; ``modules`` have one operator each."""
    path = node.meta["module_path"]
    single = isinstance(node.target, torch._ops.OpOverload)
    module = modules.get(path) if path and single else None
    if module is None or node.meta.get("mutates") or not is_torch_leaf(module):
        return False
    inputs = [
        arg
        for arg in node.all_input_nodes
        if arg.op != "get_attr" or str(arg.target).rpartition(".")[0] != path
    ]
    if len(inputs) != 1 or (node.args[:1] != (inputs[0],) and not isinstance(module, nn.Embedding)):
        return False
    node.op, node.target, node.args, node.kwargs = "call_module", path, (inputs[0],), {}
    node.meta["module_path"] = path.rpartition(".")[0]
    return True


def _path_of(node: fx.Node) -> str:
    if "module_path" in node.meta:
        return str(node.meta["module_path"])
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]).split("@")[0] if stack else ""


def _canonicalize(node: fx.Node) -> None:
    """The torch function, operator or method of the same meaning; an aten operator without one stays."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.meta.get("mutates"):
        return
    name = node.target._schema.name.partition("::")[2]
    if name == "sym_size":
        node.target = Tensor.size
    elif name == "dropout":
        node.target, node.args, node.kwargs = F.dropout, node.args[:2], {"training": node.args[2]}
    elif name == "scaled_dot_product_attention":
        node.target, node.args, node.kwargs = F.scaled_dot_product_attention, *_attention_arguments(node)
    elif name == "slice" and not node.kwargs:
        given: list[Any] = list(node.args)  # mypy takes minutes over the types that arguments can have
        tensor, dim, start, stop, step = given + [0, None, None, None][len(given) - 1 :]
        if isinstance(dim, int) and dim >= 0:
            stop = None if isinstance(stop, int) and stop >= 2**62 else stop
            bounds = slice(start, stop, step if len(given) == 5 else None)
            node.target, node.args = operator.getitem, (tensor, (*(slice(None),) * dim, bounds))
    else:
        node.target, node.args, node.kwargs = canonical_aten(name, node.target, node.args, dict(node.kwargs))


def _attention_arguments(node: fx.Node) -> tuple[Any, Any]:
    """All options by name, so that the two modes differ in a value and not in the number of arguments."""
    names = ("attn_mask", "dropout_p", "is_causal")
    options = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
    return node.args[:3], options | dict(zip(names, node.args[3:], strict=False)) | dict(node.kwargs)


def _follow_device(graph: fx.Graph) -> None:
    """Let constant devices that are the inputs' follow the inputs, so that the graph can move."""
    owner = next(
        (n for n in graph.nodes if n.op == "placeholder" and isinstance(n.meta["value"], TensorInfo)), None
    )
    device = owner.meta["input"].device if owner is not None else None
    users = [n for n in graph.nodes if device is not None and device in (*n.args, *n.kwargs.values())]
    if not users:
        return
    first = next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(first):
        reader = graph.call_function(getattr, (owner, "device"))
    reader.meta.update(value=None, module_path="", source=None)
    for node in users:
        node.args = tuple(reader if arg == device else arg for arg in node.args)
        node.kwargs = {key: reader if value == device else value for key, value in node.kwargs.items()}


def _merge_attributes(graph: fx.Graph) -> None:
    """One get_attr node per target, right after the placeholders."""
    seen: dict[str, fx.Node] = {}
    for node in [node for node in graph.nodes if node.op == "get_attr"]:
        known = seen.setdefault(str(node.target), node)
        if known is not node:
            node.replace_all_uses_with(known)
            graph.erase_node(node)
        elif not node.users:
            graph.erase_node(node)
            del seen[str(node.target)]
    first = next((node for node in graph.nodes if node.op not in ("placeholder", "get_attr")), None)
    for node in seen.values():
        if first is not None:
            first.prepend(node)
