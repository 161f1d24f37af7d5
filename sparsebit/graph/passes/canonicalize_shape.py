"""One spelling for sizes: ``torch.Tensor.size(x, dim)`` nodes that return an int, and tuples of them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from sparsebit.graph.effects import overwritten
from sparsebit.graph.ops import op_name
from sparsebit.graph.passes.edit import inherit_meta, replace_input, replace_node, replace_value
from sparsebit.graph.value import TensorInfo

# Writes in place that change the shape of the tensor itself: its size before and after are two numbers.
_RESHAPING = frozenset(
    {"resize_", "resize_as_", "unsqueeze_", "squeeze_", "t_", "transpose_", "swapaxes_", "swapdims_"}
    | {"as_strided_", "set_"}
)


def canonicalize_shape(gm: GraphModule) -> int:
    """Rewrite every way to ask for a size into ``torch.Tensor.size(x, dim)``.

    ``x.shape[i]``, ``x.size()[i]``, ``x.size(dim=i)`` and parts of slices of a shape all become one node for
    each (tensor, dimension). Where the rank of ``x`` is known, negative dimensions become positive,
    shapes and slices of them become tuples of size nodes, and ``x.ndim`` becomes a number. Shapes that leave
    the graph or enter a function that may want a ``torch.Size`` stay as they are.

    Example:
        >>> gm = torch.fx.symbolic_trace(lambda x: x.reshape(x.shape[0], -1))
        >>> canonicalize_shape(gm), gm.code.strip().splitlines()[-2].strip()
        (1, 'reshape = x.reshape(size, -1);  x = size = None')
    """
    sizes = _Sizes(gm)
    for node in gm.graph.nodes:
        sizes.visit(node)
    if sizes.changes:
        gm.recompile()
    return sizes.changes


class _Sizes:
    """One traversal of the graph from the inputs on, so that the inputs of each node are already canonical."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm, self.graph = gm, gm.graph
        self.changes = 0
        self.known: dict[tuple[Node, int], Node] = {}
        reshaped = any(_name_of(node.target) in _RESHAPING for node in gm.graph.nodes)
        self.unstable = overwritten(gm) if reshaped else {}

    def visit(self, node: Node) -> None:
        kind = _kind_of(self.gm, node)
        if kind == "size of dim":
            self._size_of_dim(node)
        elif kind in ("rank", "numel"):
            self._number(node, kind)
        elif kind == "all sizes":
            self._whole(node)
        elif node.op == "call_function" and node.target is operator.getitem:
            self._pick(node)
        elif node.op == "call_function" and node.target is operator.add:
            self._concatenate(node)

    def _size_of_dim(self, node: Node) -> None:
        source, dim = _tensor_of(node), _dim_of(node)
        assert source is not None and dim is not None
        found = self._size(source, dim, node)
        if found is not node:
            replace_node(node, found)
            self.changes += 1

    def _size(self, source: Node, dim: int, at: Node, asked_by: Node | None = None) -> Node:
        """The node for one size: ``at`` itself, an earlier node, or a new one before it."""
        rank = _rank_of(source)
        if rank is not None and -rank <= dim < 0:
            dim += rank
        known = self.known.get((source, dim)) if source not in self.unstable else None
        if known is not None:
            return known
        if at.target is torch.Tensor.size and at.args == (source, dim) and not at.kwargs:
            self.known[source, dim] = at
            return at
        with self.graph.inserting_before(at):
            size = self.graph.call_function(torch.Tensor.size, (source, dim))
        origin = (asked_by or at).meta
        size.meta = {key: origin[key] for key in ("module_path", "source") if key in origin}
        info = source.meta.get("value")
        if isinstance(info, TensorInfo) and dim < len(info.shape):
            size.meta["value"] = info.shape[dim]
        self.known[source, dim] = size
        return size

    def _number(self, node: Node, kind: str) -> None:
        source = _tensor_of(node)
        assert source is not None
        rank = _rank_of(source)
        if kind == "rank" and rank is not None:
            replace_value(node, rank)
            self.changes += 1
            return
        method: Callable[..., Any] = torch.Tensor.dim if kind == "rank" else torch.Tensor.numel
        if node.op != "call_function" or node.target is not method:
            with self.graph.inserting_before(node):
                new = self.graph.call_function(method, (source,))
            replace_node(node, inherit_meta(new, node))
            self.changes += 1

    def _whole(self, node: Node) -> None:
        """All sizes at once: replace indexed sizes, write shapes as tuples where possible, keep the rest."""
        source = _tensor_of(node)
        assert source is not None
        rank = _rank_of(source)
        for user in list(node.users):
            part = user.args[1] if user.target is operator.getitem and user.args[0] is node else None
            if isinstance(part, int):
                replace_node(user, self._size(source, part, node, user))
                self.changes += 1
            elif isinstance(part, slice) and rank is not None and _is_constant(part) and _take_tuples(user):
                dims = range(rank)[part]
                replace_value(user, tuple(self._size(source, dim, node, user) for dim in dims))
                self.changes += 1
            elif user.op == "call_method" and user.target == "numel" and user.args == (node,):
                user.args = (source,)  # the walk comes to it later
            elif rank is not None and part is None and _accepts_tuple(user, node):
                replace_input(user, node, tuple(self._size(source, dim, node, user) for dim in range(rank)))
                self.changes += 1
        if not node.users:
            self.graph.erase_node(node)
        elif node.op != "call_function" or node.target is not torch.Tensor.size:
            with self.graph.inserting_before(node):
                whole = self.graph.call_function(torch.Tensor.size, (source,))
            replace_node(node, inherit_meta(whole, node))
            self.changes += 1

    def _pick(self, node: Node) -> None:
        """An item of a tuple that is written out in the graph."""
        items, part = node.args[0], node.args[1]
        if not isinstance(items, (tuple, list)) or not _is_constant(part):
            return
        picked = items[part]  # type: ignore[index]
        if isinstance(picked, Node):
            replace_node(node, picked)
        elif _take_tuples(node) or not isinstance(picked, (tuple, list)):
            replace_value(node, picked)
        else:
            return
        self.changes += 1

    def _concatenate(self, node: Node) -> None:
        """``x.shape[:2] + (heads, -1)`` with both parts spelled out is one tuple."""
        parts = node.args
        if not all(isinstance(part, tuple) for part in parts) or not node.users:
            return
        if _take_tuples(node):
            replace_value(node, tuple(item for part in parts for item in part))  # type: ignore[union-attr]
            self.changes += 1


def _kind_of(gm: GraphModule, node: Node) -> str | None:
    """What a node reads from a tensor's shape, or None."""
    name = op_name(gm, node) if _tensor_of(node) is not None else None
    if name != "size":
        return {"dim": "rank", "numel": "numel"}.get(name or "")
    if node.target is getattr or len(node.args) + len(node.kwargs) == 1:
        return "all sizes"
    return "size of dim" if _dim_of(node) is not None else None


def _tensor_of(node: Node) -> Node | None:
    if node.op not in ("call_function", "call_method"):
        return None
    first = node.args[0] if node.args else node.kwargs.get("input")
    if not isinstance(first, Node):
        return None
    other = "value" in first.meta and not isinstance(first.meta["value"], TensorInfo)
    return None if other else first


def _dim_of(node: Node) -> int | None:
    dim = node.args[1] if len(node.args) == 2 else node.kwargs.get("dim")
    return dim if isinstance(dim, int) else None


def _rank_of(node: Node) -> int | None:
    info = node.meta.get("value")
    return len(info.shape) if isinstance(info, TensorInfo) else None


def _is_constant(part: object) -> bool:
    if isinstance(part, slice):
        return all(isinstance(edge, (int, type(None))) for edge in (part.start, part.stop, part.step))
    return isinstance(part, int)


def _take_tuples(node: Node) -> bool:
    """Whether all users of a shape, or a part of one, accept a plain tuple."""
    return all(_accepts_tuple(user, node) for user in node.users)


def _accepts_tuple(user: Node, node: Node) -> bool:
    if user.op == "call_method":
        return user.args[0] is not node  # x.view(shape), but not shape.index(3)
    if user.op != "call_function":
        return False  # the output, or a module that may ask for torch.Size
    target = user.target
    home = getattr(target, "__module__", None) or ""
    if home.startswith(("torch.", "_operator")) or home in ("torch", "math"):
        return True
    method = getattr(target, "__objclass__", None) is not None
    return method or target is getattr(torch, _name_of(target), None)


def _name_of(target: object) -> str:
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))
