"""Replacements registered by users: a pattern, and what replaces it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from sparsebit.errors import GraphError
from sparsebit.graph.match import Match, Pattern, find_matches
from sparsebit.graph.passes.edit import inherit_meta, replace_node
from sparsebit.registry import Registry

Build = Callable[[GraphModule, Match], Node]
_MOST_ROUNDS = 100  # a replacement that matches its own result would never end


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A pattern, and the function that builds the node that replaces it."""

    pattern: Pattern
    build: Build


REPLACEMENTS: Registry[Replacement] = Registry("replacement")


def register_replacement(pattern: Pattern, *, replace: bool = False) -> Callable[[Build], Build]:
    """Decorator: whatever matches ``pattern`` is replaced when a model is simplified.

    The function gets the graph module and the match and returns the new node. It is called with the graph's insertion
    point after the match. To add a module, use ``sparsebit.graph.passes.edit.set_module``.

    Example:
        >>> import torch
        >>> from sparsebit.graph.match import Op
        >>> @register_replacement(Pattern("written_out_silu", ops=[
        ...     Op("gate", "sigmoid", inputs=("$x",)),
        ...     Op("product", "mul", inputs=("$x", "gate"), commutative=True),
        ... ]))
        ... def use_silu(gm, match):
        ...     return gm.graph.call_function(torch.nn.functional.silu, (match.values["x"],))
        >>> gm = torch.fx.symbolic_trace(lambda x: torch.sigmoid(x) * x)
        >>> replace_patterns(gm), [node.name for node in gm.graph.nodes]
        (1, ['x', 'silu', 'output'])
        >>> unregister_replacement("written_out_silu")
    """

    def add(build: Build) -> Build:
        REPLACEMENTS.register(pattern.name, replace=replace)(Replacement(pattern=pattern, build=build))
        return build

    return add


def unregister_replacement(name: str) -> None:
    """Remove a replacement."""
    REPLACEMENTS.remove(name)


def replace_patterns(gm: GraphModule) -> int:
    """Apply every registered replacement until none matches any more; returns the number of replaced matches."""
    changes = 0
    for _ in range(_MOST_ROUNDS):
        found = [name for name, replacement in REPLACEMENTS.items() for _ in _replace_all(gm, replacement)]
        changes += len(found)
        if not found:
            break
    else:
        raise GraphError(
            f"replacement {found[-1]!r} still matches after {_MOST_ROUNDS} rounds",
            hint="its pattern matches its own result; exclude that result with a check",
        )
    if changes:
        gm.recompile()
    return changes


def _replace_all(gm: GraphModule, replacement: Replacement) -> list[Match]:
    matches = find_matches(gm, replacement.pattern)
    for match in matches:
        _replace(gm, replacement, match)
    return matches


def _replace(gm: GraphModule, replacement: Replacement, match: Match) -> None:
    inside = [node for node in gm.graph.nodes if node in set(match.nodes.values())]
    result = inside[-1]
    with gm.graph.inserting_after(result):
        new = replacement.build(gm, match)
    if not isinstance(new, Node):
        raise GraphError(
            f"replacement {match.pattern!r} built no node",
            expected="the node that takes the place of the match",
            got=type(new).__name__,
        )
    inherit_meta(new, result)
    replace_node(result, new)
    for node in reversed(inside[:-1]):
        if not node.users:
            gm.graph.erase_node(node)
