"""Shrink a captured graph: an ordinary, smaller one with dense weights."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.cpu_by_default import cpu_by_default
from sparsebit.graph.value import TensorInfo, change_at, map_tensors, tensors_in
from sparsebit.sparse.channels.trace import tensors_of
from sparsebit.sparse.shrink.plan import Edit, Scaled, ShrinkPlan

_PLAIN = (bool, int, float, str, type(None))
_PARTS = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", "training")


@cpu_by_default
def shrink_graph(gm: CapturedModule, plan: ShrinkPlan) -> CapturedModule:
    """A smaller copy of ``gm``. Only what is kept is copied; tied tensors stay tied."""
    plan.check(gm)
    memo = cut_tensors(gm, plan)
    state = {
        key: copy.deepcopy(held, memo) for key, held in vars(gm).items() if key not in ("_graph", "_code")
    }
    graph = copy.deepcopy(gm.graph, memo)
    nodes = {node.name: node for node in graph.nodes}
    for name, sizes in plan.sizes.items():
        resize(nodes[name], sizes)
    for edit in plan.edits:
        _apply(nodes[edit.node], edit)
    graph.lint()
    root = nn.Module()
    root.__dict__.update({key: state[key] for key in _PARTS})
    set_attributes(root, plan)
    small = CapturedModule(root, graph, type(gm).__name__)
    small.__dict__.update({key: held for key, held in state.items() if key not in _PARTS})
    return small


def cut_tensors(model: nn.Module, plan: ShrinkPlan) -> dict[int, Any]:
    """A memo for ``copy.deepcopy`` that already contains every tensor in its new size, and most layers."""
    memo: dict[int, Any] = {}
    with torch.no_grad():
        for name, tensor in tensors_of(model).items():
            before = tensor.detach()
            data = plan.weights(name, before)
            if id(tensor) in memo or (data is before and type(tensor) not in (Tensor, nn.Parameter)):
                continue
            data = before.clone() if data is before else data.contiguous()
            if isinstance(tensor, nn.Parameter):
                data = nn.Parameter(data, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = data
            memo.setdefault(id(memo), []).append(tensor)  # deepcopy keeps what its memo speaks of alive
    for module in model.modules():
        if type(module).__module__.startswith("torch.nn.modules.") and not module._modules:
            _copy_layer(module, memo)
    return memo


def _copy_layer(module: nn.Module, memo: dict[int, Any]) -> None:
    """Copy a layer as ``copy.deepcopy`` would, but faster: a layer is mostly numbers and empty dicts of hooks."""
    if type(module).__getstate__ is not nn.Module.__getstate__:
        return
    state: dict[str, Any] = {}
    for name, value in module.__getstate__().items():
        if isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(isinstance(v, int) for v in value)):
            state[name] = value
        elif isinstance(value, dict | set) and not value:
            state[name] = type(value)()
        else:
            state[name] = copy.deepcopy(value, memo)
    memo[id(module)] = twin = module.__new__(type(module))
    twin.__dict__.update(state)


def set_attributes(model: nn.Module, plan: ShrinkPlan) -> None:
    """Set the new sizes of every layer."""
    for path, values in plan.modules.items():
        module = model.get_submodule(path)
        for name, value in values.items():
            setattr(module, name, tuple(value) if isinstance(value, list) else value)
    flatten_recurrent(model)


def flatten_recurrent(model: nn.Module) -> None:
    """Make the weights of recurrent layers contiguous again, as CUDA needs; does nothing on other devices."""
    for module in model.modules():
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()


def _apply(node: Node, edit: Edit) -> None:
    kind = edit.path[0]
    if kind == "target":
        node.target = getattr(torch, str(edit.new))
    elif kind in ("scale", "restore"):
        readers = list(node.users)
        factor = edit.new if isinstance(edit.new, Scaled) else Scaled(edit.new)
        with node.graph.inserting_after(node):
            constant = kind == "restore" and factor is not edit.new
            instead = edit.new if constant else _times(node, factor)
        for reader in readers:
            reader.args, reader.kwargs = map_arg(
                (reader.args, dict(reader.kwargs)), lambda source: instead if source is node else source
            )
    elif edit.path == ("args",):
        node.args = (node.all_input_nodes[0], *edit.new[1:])
        node.kwargs = {}
    else:
        path, new = edit.path[1:], partial(_new, node, edit.new)
        setattr(node, str(kind), change_at(getattr(node, str(kind)), path, new))


def _times(source: Node, factor: Scaled) -> Node:
    """New nodes for ``source * times // over`` at the insertion point; the source itself if that changes nothing."""
    for function, number in ((operator.mul, factor.times), (operator.floordiv, factor.over)):
        if number != 1:
            new = source.graph.call_function(function, (source, number))
            old = source.meta["value"]
            new.meta = {
                **source.meta,
                "value": function(old, number) if isinstance(old, int | float) else old,
            }
            source = new
            source.graph.inserting_after(new)
    return source


def _new(user: Node, new: Any, old: Any) -> Any:
    """The new value of an argument."""
    if isinstance(new, Scaled):
        with user.graph.inserting_before(user):
            return _times(old, new)
    return tuple(new) if isinstance(new, list) else new


def resize(node: Node, sizes: Any) -> None:
    """Update a node's recorded value with the sizes of a plan."""
    old = node.meta.get("value")
    if next(tensors_in(old), None) is None:
        node.meta["value"] = tuple(sizes) if isinstance(sizes, list) else sizes
        return
    shapes = iter(sizes)
    node.meta["value"] = map_tensors(old, lambda info: TensorInfo(tuple(next(shapes)), info.dtype))


def shrink_state_dict(state: Mapping[str, Tensor], plan: ShrinkPlan) -> dict[str, Tensor]:
    """The state dict of the shrunk model from that of the original; tensors that keep their size are not copied."""
    return {name: plan.weights(name, tensor) for name, tensor in state.items()}
