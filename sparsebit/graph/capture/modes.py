"""One graph for both modes: values that differ between them become constants that follow the mode."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.amp import autocast_mode

from sparsebit.graph.exclusive import replaced
from sparsebit.graph.functional import ModeConstant, check_branch
from sparsebit.graph.value import change_at

_DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
_KEPT = (autocast_mode._enter_autocast, autocast_mode._exit_autocast, torch._C._set_grad_enabled)


class Differs(Exception):
    """Raised if two recordings are different programs: the first node that differs, and how."""

    def __init__(self, node: fx.Node, text: str) -> None:
        self.node = node
        super().__init__(text)

    def __str__(self) -> str:
        return f"{self.node.meta.get('source') or self.node.format_node()} ({self.args[0]})"


def flipped_modes(modules: Sequence[nn.Module]) -> contextlib.AbstractContextManager[None]:
    """Flip the mode of each module, without calling an overridden ``train``."""
    return replaced(*((module, "training", not module.training) for module in modules))


def merge_modes(graph: fx.Graph, other: fx.Graph, training: Callable[[str], bool]) -> str | None:
    """Compare the recordings of the two modes, and let values that differ follow the mode.

    ``training`` says in which mode a module was in the recording of ``graph``. Returns None, or the place where the
    programs differ (then ``graph`` is unchanged).
    """
    try:
        comparison = compare(graph, other)
    except Differs as difference:
        return str(difference)
    follow_mode(graph, comparison, training)
    return None


def compare(graph: fx.Graph, other: fx.Graph) -> Comparison:
    """The differences between two recordings of one program; raises ``Differs`` if they are different programs."""
    return Comparison(_live(graph), _live(other))


def follow_mode(graph: fx.Graph, comparison: Comparison, training: Callable[[str], bool]) -> None:
    """Let values that differ between the recordings of two modes follow the mode.

    Constants that differ (a probability, a flag) are read from a ``ModeConstant``; a dropout that only one mode has is
    inserted, switched by one.
    """
    numbers = itertools.count(sum(isinstance(n.meta.get("mode_constant"), ModeConstant) for n in graph.nodes))
    for user, path, dropout in comparison.missing:
        _insert_dropout(graph, user, path, dropout, comparison.other_to_mine, numbers)
    for dropout in comparison.extra:
        _switch_dropout(graph, dropout, numbers)
    for node, path, here, there in comparison.constants:
        values = (here, there) if training(str(node.meta.get("module_path", ""))) else (there, here)
        _replace(graph, node, path, ModeConstant(*values), numbers)


class Comparison:
    """Compares two recordings node by node; raises ``Differs`` if they are different programs."""

    def __init__(self, mine: list[fx.Node], theirs: list[fx.Node]) -> None:
        self.mine, self.theirs = mine, theirs
        self.pairs: dict[fx.Node, fx.Node] = {}  # mine → theirs
        self.other_to_mine: dict[fx.Node, fx.Node] = {}
        self.constants: list[tuple[fx.Node, tuple[Any, ...], Any, Any]] = []
        self.missing: list[tuple[fx.Node, tuple[Any, ...], fx.Node]] = []  # dropouts only the other one has
        self.extra: list[fx.Node] = []  # dropouts only this recording has
        left = right = 0
        while left < len(self.mine) and right < len(self.theirs):
            one, two = self.mine[left], self.theirs[right]
            if (one.op, one.target) == (two.op, two.target):
                self._compare(one, ("args",), one.args, two.args)
                self._compare(one, ("kwargs",), one.kwargs, two.kwargs)
                self.pairs[one], self.other_to_mine[two] = two, one
                left, right = left + 1, right + 1
            elif _is_dropout(two):
                right += 1
            elif _is_dropout(one):
                self.extra.append(one)
                left += 1
            elif "get_attr" in (one.op, two.op):
                # They are sorted by name, so the smaller one is missing in the other run.
                node = min((n for n in (one, two) if n.op == "get_attr"), key=lambda n: str(n.target))
                raise Differs(next(iter(node.users)), f"only one of the modes reads {node.target}")
            else:
                node = two if one.op == "output" else one
                raise Differs(node, f"{_spell(one)} in one run, {_spell(two)} in the other")
        if left < len(self.mine) or right < len(self.theirs):
            node = self.mine[left] if left < len(self.mine) else self.theirs[right]
            raise Differs(node, "one run has more operations than the other")

    def _compare(self, node: fx.Node, path: tuple[Any, ...], left: Any, right: Any) -> None:
        if isinstance(left, fx.Node) and isinstance(right, fx.Node):
            self._compare_inputs(node, path, left, right)
        elif isinstance(left, tuple | list) and isinstance(right, tuple | list) and len(left) == len(right):
            for index, (one, two) in enumerate(zip(left, right, strict=True)):
                self._compare(node, (*path, index), one, two)
        elif isinstance(left, dict) and isinstance(right, dict) and list(left) == list(right):
            for key in left:
                self._compare(node, (*path, key), left[key], right[key])
        elif isinstance(left, slice) and isinstance(right, slice):
            bounds = [(piece.start, piece.stop, piece.step) for piece in (left, right)]
            self._compare(node, (*path, "slice"), *bounds)
        elif left != right or type(left) is not type(right):
            if "slice" in path or any(
                isinstance(side, tuple | list | dict | fx.Node) for side in (left, right)
            ):
                raise Differs(node, f"{left!r} in one run, {right!r} in the other")
            self.constants.append((node, path, left, right))

    def _compare_inputs(self, node: fx.Node, path: tuple[Any, ...], left: fx.Node, right: fx.Node) -> None:
        if self.pairs.get(left) is right:
            return
        unknown = right not in self.other_to_mine and _is_dropout(right)
        if unknown and self.other_to_mine.get(_source(right)) is left:
            self.missing.append((node, path, right))
        elif not (left in self.extra and self.pairs.get(_source(left)) is right):
            raise Differs(node, "an operator has different inputs")


def _is_dropout(node: fx.Node) -> bool:
    return node.target in _DROPOUTS and bool(node.args) and isinstance(node.args[0], fx.Node)


def _source(dropout: fx.Node) -> fx.Node:
    source = dropout.args[0]
    assert isinstance(source, fx.Node)
    return source


def _spell(node: fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _switch_dropout(graph: fx.Graph, node: fx.Node, numbers: Iterator[int]) -> None:
    """Let a dropout of the training recording follow the mode."""
    probability = node.args[1] if len(node.args) > 1 else node.kwargs.get("p", 0.5)
    node.args, node.kwargs = (node.args[0], probability), {"training": True}
    _replace(graph, node, ("kwargs", "training"), ModeConstant(True, False), numbers)


def _insert_dropout(
    graph: fx.Graph,
    user: fx.Node,
    path: tuple[Any, ...],
    dropout: fx.Node,
    other_to_mine: dict[fx.Node, fx.Node],
    numbers: Iterator[int],
) -> None:
    """Put a dropout of the other recording between a node and the one it reads; one for all its readers."""
    if dropout not in other_to_mine:
        probability = dropout.args[1] if len(dropout.args) > 1 else dropout.kwargs.get("p", 0.5)
        source = other_to_mine[_source(dropout)]
        with graph.inserting_after(source):
            node = graph.call_function(dropout.target, (source, probability), {"training": True})  # type: ignore[arg-type]
        node.meta.update(source.meta | {"source": dropout.meta.get("source")})
        node.meta["module_path"] = dropout.meta.get("module_path", "")
        _replace(graph, node, ("kwargs", "training"), ModeConstant(True, False), numbers)
        other_to_mine[dropout] = node
    _edit(user, path, other_to_mine[dropout])


def is_removable(node: fx.Node) -> bool:
    """Whether a recorded node only computes a value, so that it can be removed if the value is unused."""
    if node.op not in ("call_function", "get_attr") or node.meta.get("mutates"):
        return False
    return node.target not in _KEPT and node.target not in fx.node._side_effectful_functions


def _live(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that are used: others (an unused random number) may differ between the modes."""
    needed: set[fx.Node] = set()
    for node in reversed(list(graph.nodes)):
        if node in needed or (not is_removable(node) and node.target is not check_branch):
            needed.add(node)
            needed.update(node.all_input_nodes)
    order = [node for node in graph.nodes if node in needed]
    attributes = sorted((n for n in order if n.op == "get_attr"), key=lambda n: str(n.target))
    inputs = [n for n in order if n.op == "placeholder"]
    return inputs + attributes + [n for n in order if n.op not in ("placeholder", "get_attr")]


def _replace(
    graph: fx.Graph, node: fx.Node, path: tuple[Any, ...], constant: ModeConstant, numbers: Iterator[int]
) -> None:
    owner = str(node.meta.get("module_path", ""))
    name = f"{owner}._mode_constant{next(numbers)}".removeprefix(".")
    with graph.inserting_before(node):
        reader = graph.create_node("call_module", name)  # its module is placed later
    reader.meta.update(
        value=constant.when_evaluating,
        module_path=owner,
        source=node.meta.get("source"),
        mode_constant=constant,
    )
    _edit(node, path, reader)


def _edit(node: fx.Node, path: tuple[Any, ...], value: fx.Node) -> None:
    container, *keys = path
    setattr(node, container, change_at(getattr(node, container), keys, lambda _: value))
