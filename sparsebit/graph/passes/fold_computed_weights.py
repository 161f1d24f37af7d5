"""Compute once the weights that a model computes from its parameters in every call."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg

from sparsebit.graph.effects import is_effect, written_tensors
from sparsebit.graph.ops import bind, find_op
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.passes.edit import remove_module, remove_tensor, replace_input, set_tensor


def fold_computed_weights(gm: GraphModule) -> int:
    """If a layer's weight is computed only from parameters, store the computed weight, in the mode of the graph.

    Weight norm, spectral norm, standardized weights, merged low-rank weights, and products with a transposed parameter
    (``x @ weight.T``): such a layer is then an ordinary one. The tensors it was computed from are removed from the
    graph module; a weight that shares parameters with other operators (tied to an embedding) stays computed. The user's
    own modules and parameters do not change.

    Example:
        >>> from sparsebit.graph.capture import capture
        >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 2))
        >>> gm = capture(layer, torch.zeros(1, 4))
        >>> fold_computed_weights(gm), sorted(gm.state_dict())
        (1, ['bias', 'weight'])
    """
    found = {node: weight for node in gm.graph.nodes if (weight := _computed_weight(gm, node)) is not None}
    written = written_tensors(gm) if found else ()
    needed = _sources(weight for weight in found.values() if _is_fixed(gm, weight, written))
    shared = _read_elsewhere(gm, needed)
    folded = {
        layer: weight
        for layer, weight in found.items()
        if weight in needed
        and layer not in needed  # a product of parameters is a part of some weight
        and not any(_tensors_read(gm, source).keys() & shared for source in _sources([weight]))
    }
    needed = _sources(folded.values())
    values, stored = _compute(gm, needed), list[tuple[set[str], Tensor, str]]()
    for layer, weight in folded.items():
        value = values[weight]
        assert isinstance(value, Tensor), weight
        origin = {str(source.target) for source in _sources([weight]) if source.op != "call_function"}
        # a layer that is called twice keeps one weight
        known = (name for first, same, name in stored if first == origin and torch.equal(same, value))
        path = next(known, None)
        if path is None:
            path = _free_name(gm, layer)
            # in the memory order of files, so that a loaded or frozen model gives the same bits
            value = value.clone(memory_format=torch.contiguous_format)
            trained = any(
                tensor.requires_grad
                for source in _sources([weight])
                for tensor in _tensors_read(gm, source).values()
            )
            set_tensor(gm, path, value, like=nn.Parameter(value, requires_grad=trained))
            stored.append((origin, value, path))
        with gm.graph.inserting_before(layer):
            node = gm.graph.get_attr(path)
        node.meta = {
            key: weight.meta[key] for key in ("value", "module_path", "source") if key in weight.meta
        }
        replace_input(layer, weight, node)
    if folded:
        _remove_unread(gm, needed)
        gm.recompile()
    return len(stored)


def computed_weights(gm: GraphModule) -> dict[Node, list[str]]:
    """The layers whose weight is computed only from parameters, and the names of these parameters."""
    found = {node: weight for node in gm.graph.nodes if (weight := _computed_weight(gm, node)) is not None}
    written = written_tensors(gm) if found else ()
    return {
        node: [str(source.target) for source in _sources([weight]) if source.op == "get_attr"]
        for node, weight in found.items()
        if _is_fixed(gm, weight, written)
    }


def _is_fixed(gm: GraphModule, value: Node, written: Container[str]) -> bool:
    """Whether a value is the same in every call: it depends on no input, random number or changed buffer."""
    for node in _sources([value]):
        if node.op == "placeholder" or (node.op == "get_attr" and str(node.target) in written):
            return False
        spec = find_op(gm, node) if node.op != "get_attr" else None
        if is_effect(gm, node) or (spec is not None and spec.random):
            return False
    return True


def _tensors_read(gm: GraphModule, node: Node) -> dict[int, Tensor]:
    """The parameters and buffers that a node reads directly, by their ids."""
    found: tuple[Tensor, ...] = ()
    if node.op == "get_attr":
        found = (fetch_tensor(gm, str(node.target)),)
    elif node.op == "call_module":
        module = gm.get_submodule(str(node.target))
        found = (*module.parameters(), *module.buffers())
    return {id(tensor): tensor for tensor in found}


def _read_elsewhere(gm: GraphModule, needed: dict[Node, None]) -> set[int]:
    """Tensors that other nodes also read: a stored weight computed from them would no longer follow them."""
    found = set[int]()
    for node in gm.graph.nodes:
        outside = node not in needed or any(
            user not in needed and _computed_weight(gm, user) is None for user in node.users
        )
        if outside and (node.users or node.op == "call_module"):
            found |= _tensors_read(gm, node).keys()
    return found


def _computed_weight(gm: GraphModule, node: Node) -> Node | None:
    """The weight of a layer, if it is computed and is a float tensor."""
    call = bind(gm, node)
    if call is None or call.spec.weight_axes is None:
        return None
    weight = call.arguments.get(call.spec.weight or "")
    if not isinstance(weight, Node) or weight.op == "get_attr":
        return None
    dtype = getattr(weight.meta.get("value"), "dtype", None)
    return weight if dtype is not None and dtype.is_floating_point else None


def _sources(nodes: Iterable[Node]) -> dict[Node, None]:
    """These nodes and everything they depend on."""
    found = dict.fromkeys(nodes)
    waiting = list(found)
    while waiting:
        new = [source for source in waiting.pop().all_input_nodes if source not in found]
        found.update(dict.fromkeys(new))
        waiting += new
    return found


def _compute(gm: GraphModule, needed: dict[Node, None]) -> dict[Node, Any]:
    """The values of nodes that depend on no input."""
    interpreter, values = Interpreter(gm), dict[Node, Any]()
    with torch.no_grad():
        for node in gm.graph.nodes if needed else ():
            if node in needed:
                args, kwargs = map_arg((node.args, dict(node.kwargs)), values.__getitem__)
                values[node] = getattr(interpreter, node.op)(node.target, args, kwargs)
    return values


def _remove_unread(gm: GraphModule, needed: dict[Node, None]) -> None:
    """Erase the given nodes that are no longer read, with the tensors and modules that only they use."""
    gone = [node for node in reversed(list(gm.graph.nodes)) if node in needed]
    erased = set[tuple[str, str]]()
    for node in gone:
        if not node.users:
            erased.add((node.op, str(node.target)))
            gm.graph.erase_node(node)
    left = {(node.op, str(node.target)) for node in gm.graph.nodes}
    for op, name in sorted(erased - left):
        if op == "get_attr":
            remove_tensor(gm, name)
        elif op == "call_module":
            remove_module(gm, name)


def _free_name(gm: GraphModule, layer: Node) -> str:
    """``weight`` of the module that calls the layer, or the next name that is free there."""
    owner = str(layer.meta.get("module_path", ""))
    name = "weight"
    while hasattr(gm.get_submodule(owner), name):
        name = f"computed_{name}"
    return f"{owner}.{name}" if owner else name
