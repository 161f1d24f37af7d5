"""Find and recompute constants that depend on a size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from sparsebit.errors import GraphError
from sparsebit.graph.ops.spec import OpCall, place
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.rules.base import number
from sparsebit.sparse.channels.rules.index import indexed_dims
from sparsebit.sparse.channels.trace import Trace, labels_in
from sparsebit.sparse.shrink.alive import Alive
from sparsebit.sparse.shrink.attributes import count_groups, module_attributes
from sparsebit.sparse.shrink.plan import Edit, Path, Scaled

Found = tuple[list[Edit], dict[str, dict[str, Any]], dict[str, Any]]


def find_edits(
    gm: GraphModule, trace: Trace, alive: Alive, index: Mapping[str, Mapping[int, Tensor]]
) -> Found:
    """Edits of nodes, attributes of modules, and the new sizes of results."""
    if alive.nothing_goes:
        return [], {}, {}
    finder = Finder(gm, trace, alive)
    modules: dict[str, dict[str, Any]] = {}
    for node in gm.graph.nodes:
        finder.visit(node)
        if node.op == "call_module":
            call = trace.calls.get(node.name)
            wanted = module_attributes(call, trace, alive, index) if call is not None else {}
            known = modules.setdefault(str(node.target), wanted)
            if known != wanted:
                raise GraphError(
                    "one module is used in two places that need different sizes",
                    where=place(node),
                    expected=str(known),
                    got=str(wanted),
                )
    return finder.edits, {path: values for path, values in modules.items() if values}, finder.sizes


class Finder:
    """Traverses the graph once: the new shape of every node's result, and the constants that must change.

    Where a changed size is read, the original size is restored. Everything that Python computes from sizes, also a
    scale or a divisor, is therefore unchanged, and only arguments that are sizes of the result must change.
    """

    def __init__(self, gm: GraphModule, trace: Trace, alive: Alive) -> None:
        self.gm, self.trace, self.alive = gm, trace, alive
        self.edits: list[Edit] = []
        self.sizes: dict[str, Any] = {}
        # the values that readers of a node get: a tensor of its new shape, or new sizes
        self.changed: dict[str, Any] = {}
        self.dynamic: set[str] = set()  # numbers that follow the size of the input (batch, length, pixels)
        layers = [axis.labels for axis in trace.axes.values() if not axis.bare]
        # classes that layers have weights for
        self.in_layers = torch.zeros(trace.sets.size, dtype=torch.bool)
        if layers:
            self.in_layers[trace.roots[torch.cat(layers)]] = True

    def visit(self, node: Node) -> None:
        """Process one node."""
        value = self.trace.values.get(node.name)
        found = list(labels_in(value))
        shapes = [self.alive.shape(labels) for labels in found]
        if any(shape != labels.shape for shape, labels in zip(shapes, found, strict=True)):
            self.sizes[node.name] = [list(shape) for shape in shapes]
            if isinstance(value, Labels):
                self.changed[node.name] = torch.empty(shapes[0], device="meta")
        call = self.trace.calls.get(node.name)
        if node.op.startswith("call_") and not found:
            self._number(node)
        elif node.op == "call_function" and call is not None:
            self._constants(node, call)

    def _number(self, node: Node) -> None:
        """A size, or a number that Python computes from sizes."""
        if self._follows_input(node):
            self.dynamic.add(node.name)
        if not any(source.name in self.changed for source in node.all_input_nodes):
            return
        try:
            args, kwargs = map_arg(
                (node.args, dict(node.kwargs)),
                lambda n: self.changed[n.name] if n.name in self.changed else n.meta["value"],
            )
            new = node.target(*args, **kwargs)  # type: ignore[operator]
        except Exception:  # not a computation on sizes, so it is unchanged
            return
        new, old = tuple(new) if isinstance(new, torch.Size) else new, node.meta.get("value")
        if new == old or not isinstance(new, (int, float, tuple, list)):
            return
        self.sizes[node.name] = new
        if isinstance(new, int | float):
            self.edits.append(Edit(node.name, ("restore",), new, self._spell(node, new, old)))
        else:
            self.changed[node.name] = new

    def _follows_input(self, node: Node) -> bool:
        if any(source.name in self.dynamic for source in node.all_input_nodes):
            return True
        source = node.args[0] if node.args else None
        value = self.trace.values.get(source.name) if isinstance(source, Node) else None
        if not isinstance(value, Labels) or source.op == "get_attr":  # type: ignore[union-attr]
            return False
        dim = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        if not isinstance(dim, int):
            return True
        at = dim % max(len(value.shape), 1)
        known = [family.labels for family in value.families if family.dims == (at,)]
        return not any(
            len(torch.unique(labels)) == len(labels) and self._are_channels(labels) for labels in known
        )

    def _are_channels(self, labels: Tensor) -> bool:
        """Whether a layer computes or reads these labels. Joining or copying along the batch gives it labels too."""
        return self.alive.of(labels) is not None or bool(self.in_layers[self.trace.roots[labels]].any())

    def _set(self, node: Node, path: Path, old: Any, new: Any) -> None:
        """Record an edit unless the argument is already correct."""
        if (was := number(old)) != new:
            self.edits.append(Edit(node.name, path, was, self._spell(old, was, new)))

    def _spell(self, source: Any, was: Any, new: Any) -> Any:
        """A plain number, or a factor of the computed value if that follows the size of the input."""
        if not isinstance(source, Node) or source.name not in self.dynamic or not was:
            return new
        if not isinstance(new, int) or not isinstance(was, int):
            return Scaled(new / was)
        divisor = math.gcd(new, was)
        return Scaled(new // divisor, was // divisor)

    def _path(self, call: OpCall, name: str) -> Path:
        """The position of an argument in its node."""
        for key in call.node.kwargs:
            if key == name or call.spec.aliases.get(key) == name or {"axis": "dim"}.get(key) == name:
                return ("kwargs", key)
        position = call.spec.parameters.index(name)
        return ("args", position) if position < len(call.node.args) else ("kwargs", name)

    def _constants(self, node: Node, call: OpCall) -> None:
        """Recompute the sizes among a node's arguments."""
        if node.name in self.trace.averages:
            flags = self.alive.of(self.trace.averages[node.name].labels)
            if flags is not None:
                self.edits.append(Edit(node.name, ("scale",), 1.0, float(flags.double().mean())))
        handler = getattr(self, f"_do_{call.spec.sizes}", None)
        if handler is not None:
            handler(node, call)

    def _input(self, call: OpCall) -> Labels:
        source = call.arguments["input"]
        assert isinstance(source, Node)
        value = self.trace.values[source.name]
        assert isinstance(value, Labels), source
        return value

    def _do_shape(self, node: Node, call: OpCall) -> None:
        """reshape, view, expand, unflatten, constant fills and norms: the remaining shape."""
        names = ("shape", "sizes", "size", "normalized_shape")
        name = next(name for name in names if name in call.spec.parameters)
        given, path = call.arguments.get(name), self._path(call, name)
        shape = self.alive.shape(self.trace.labels_of(node))
        if isinstance(given, Node) and isinstance(number(given), tuple | list):
            if tuple(self.changed.get(given.name, number(given))) != shape:
                self.edits.append(Edit(node.name, path, list(given.meta["value"]), list(shape)))
            return
        sizes = list(given) if isinstance(given, (tuple, list)) else [given]
        if name == "sizes":  # of one dim only
            at = int(call.arguments["dim"]) % len(self._input(call).shape)  # type: ignore[call-overload]
            shape = shape[at : at + len(sizes)]
        for position, (old, new) in enumerate(zip(sizes, shape[len(shape) - len(sizes) :], strict=True)):
            if not (isinstance(old, int) and old == -1):
                self._set(node, (*path, position) if isinstance(given, (tuple, list)) else path, old, new)

    _do_norm = _do_shape

    def _do_split(self, node: Node, call: OpCall) -> None:
        """split, chunk and tensor_split: parts of the remaining widths."""
        source, dim = self._input(call), call.arguments.get("dim", 0)
        assert isinstance(dim, int)
        at = dim % len(source.shape)
        given = call.arguments.get("split_size")
        if self.alive.along(source, at) is None:
            return
        parts = list(labels_in(self.trace.values[node.name]))
        sizes = [self.alive.shape(part)[at] for part in parts]
        total = sum(sizes)
        if "split_size" in call.arguments:
            path = self._path(call, "split_size")
            if isinstance(given, (tuple, list)):
                for position, (old, new) in enumerate(zip(given, sizes, strict=True)):
                    self._set(node, (*path, position), old, new)
            elif all(size == sizes[0] for size in sizes[:-1]) and sizes[-1] <= sizes[0]:
                self._set(node, path, given, sizes[0])
            else:
                self.edits.append(Edit(node.name, path, None, sizes))
            return
        chunks = call.arguments.get("chunks")
        if isinstance(chunks, int):
            step = math.ceil(total / chunks)
            if sizes == [min(step, total - start) for start in range(0, total, step)]:
                return
        self.edits.append(Edit(node.name, ("target",), call.spec.name, "split"))
        self.edits.append(Edit(node.name, ("args",), None, ["input", sizes, at]))

    def _do_slice(self, node: Node, call: OpCall) -> None:
        """narrow, slice, select: positions among the remaining ones."""
        source, dim = self._input(call), call.arguments.get("dim", 0)
        assert isinstance(dim, int)
        at = dim % len(source.shape)
        flags = self.alive.along(source, at)
        if flags is None:
            return
        if "index" in call.arguments:
            old = call.arguments["index"]
            position = number(old) % len(flags)
            self._set(node, self._path(call, "index"), old, int(flags[:position].sum()))
        elif "length" in call.arguments:
            start, length = call.arguments["start"], call.arguments["length"]
            first = number(start) % len(flags)
            left = int(flags[first : first + number(length)].sum())
            self._set(node, self._path(call, "start"), start, int(flags[:first].sum()))
            self._set(node, self._path(call, "length"), length, left)
        else:
            self._bounds(node, self._path(call, "start"), call.arguments.get("start"), flags)
            self._bounds(node, self._path(call, "end"), call.arguments.get("end"), flags)

    def _do_getitem(self, node: Node, call: OpCall) -> None:
        source, index = call.arguments["input"], call.arguments["index"]
        value = self.trace.values.get(source.name) if isinstance(source, Node) else None
        if not isinstance(value, Labels):
            return
        path = self._path(call, "index")
        for position, dim, item in indexed_dims(index, value.rank):
            flags = self.alive.along(value, dim)
            here = (*path, position) if isinstance(index, tuple) else path
            if flags is not None and isinstance(item, slice) and item.step in (None, 1):
                self._bounds(node, (*here, "start"), item.start, flags)
                self._bounds(node, (*here, "stop"), item.stop, flags)
            elif flags is not None and not isinstance(item, slice) and isinstance(number(item), int):
                at = number(item) % len(flags)
                self._set(node, here, item, int(flags[:at].sum()))

    def _bounds(self, node: Node, path: Path, bound: Any, flags: Tensor) -> None:
        if bound is None:
            return
        old = number(bound)
        position = max(old + len(flags), 0) if old < 0 else min(old, len(flags))
        new = int(flags[:position].sum())
        if isinstance(bound, Node) or position < len(flags) or old < 0:
            self._set(node, path, bound, new)

    def _do_pad(self, node: Node, call: OpCall) -> None:
        result, amounts = self.trace.labels_of(node), call.arguments["pad"]
        if not isinstance(amounts, (tuple, list)):
            return
        path, rank = self._path(call, "pad"), len(result.shape)
        for pair in range(len(amounts) // 2):
            flags = self.alive.along(result, rank - 1 - pair)
            left, right = number(amounts[2 * pair]), number(amounts[2 * pair + 1])
            if flags is not None and (left or right):
                self._set(node, (*path, 2 * pair), amounts[2 * pair], int(flags[:left].sum()))
                rest = int(flags[len(flags) - right :].sum()) if right else 0
                self._set(node, (*path, 2 * pair + 1), amounts[2 * pair + 1], rest)

    def _do_squeeze(self, node: Node, call: OpCall) -> None:
        """Without a dim, it would also drop a dim that has been reduced to one."""
        source = self._input(call)
        shape = self.alive.shape(source)
        if call.arguments.get("dim") is None and any(
            a != b and a == 1 for a, b in zip(shape, source.shape, strict=True)
        ):
            ones = [dim for dim, size in enumerate(source.shape) if size == 1]
            self.edits.append(Edit(node.name, self._path(call, "dim"), None, ones))

    def _do_attention(self, node: Node, call: OpCall) -> None:
        """The default scale depends on the width of a head, so the original's scale is written out."""
        query = call.arguments["query"]
        labels = self.trace.labels_of(query)
        width = labels.shape[-1]
        if call.arguments.get("scale") is None and self.alive.shape(labels)[-1] != width:
            self.edits.append(Edit(node.name, ("kwargs", "scale"), None, 1 / math.sqrt(width)))

    def _do_groups(self, node: Node, call: OpCall) -> None:
        attribute = "num_groups" if "num_groups" in call.arguments else "groups"
        wanted = count_groups(call, self.trace, self.alive)
        self._set(node, self._path(call, attribute), call.arguments[attribute], wanted)
