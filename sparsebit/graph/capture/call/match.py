"""Compare a call with the structure of the example: its leaves, or an error that names the argument that differs."""

from __future__ import annotations

from typing import Any

import torch

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.structure import Branch, Constant, Leaf, Tree, split_container


def match_leaves(tree: Tree, value: Any, found: list[Any]) -> None:
    """Collect the leaves of ``value`` along a known tree; a call that differs in structure is an error.

    Constants must be equal to what the graph was captured with, because the graph holds what followed from them.
    """
    if isinstance(tree, Leaf):
        if not tree.anything and not isinstance(value, torch.Tensor):
            raise CaptureError(
                f"argument {tree.path!r} was a tensor when the model was captured",
                expected="a tensor",
                got=_describe(value),
                hint="pass a tensor, or capture the model again with this call as the example",
            )
        if tree.given and value is None:
            raise CaptureError(
                f"argument {tree.path!r} was left out, but the model was traced with it",
                hint="pass it, or capture the model with example inputs that omit it",
            )
        if isinstance(value, torch.Tensor):
            _refuse_another_kind(tree, value)
        found.append(value)
        return
    if isinstance(tree, Constant):
        if value is tree.value or _equal(value, tree.value):
            return
        raise CaptureError(
            f"argument {tree.path!r} is fixed in the captured graph",
            expected=_describe(tree.value),
            got=_describe(value),
            hint="capture the model again with this value in the example inputs",
        )
    parts = split_container(value)
    if parts is None or type(value) is not tree.type or set(parts[0]) != set(tree.keys):
        raise CaptureError(
            f"argument {tree.path!r} has a different structure from the example",
            expected=f"{tree.type.__name__} with {_listed(tree.keys)}",
            got=_describe(value) if parts is None else f"{type(value).__name__} with {_listed(parts[0])}",
            hint="capture the model again with this call as the example",
        )
    given = dict(zip(parts[0], parts[1], strict=True))
    for key, child in zip(tree.keys, tree.children, strict=True):
        match_leaves(child, given[key], found)


def _refuse_another_kind(leaf: Leaf, value: torch.Tensor) -> None:
    """A model may branch on the rank or the dtype kind of its input."""
    if leaf.dtype is not None and (
        (leaf.rank, leaf.dtype.is_floating_point) != (value.dim(), value.is_floating_point())
    ):
        raise CaptureError(
            f"argument {leaf.path!r} is a different kind of tensor from the example",
            expected=f"a {leaf.rank}-dimensional {_kind_of(leaf.dtype)} tensor",
            got=f"a {value.dim()}-dimensional {_kind_of(value.dtype)} tensor",
            hint="capture the model again with such a tensor as the example",
        )
    if leaf.reads_dtype is not None and value.dtype != leaf.dtype:
        raise CaptureError(
            f"argument {leaf.path!r} has a different dtype from the example, and the model reads its dtype",
            where=leaf.reads_dtype,
            expected=str(leaf.dtype),
            got=str(value.dtype),
            hint="convert the model to this dtype and capture it again",
        )
    for size in leaf.sizes:
        size.require(value)


def _kind_of(dtype: torch.dtype) -> str:
    return "floating-point" if dtype.is_floating_point else "complex" if dtype.is_complex else "integer"


def same_structure(left: Tree, right: Tree) -> bool:
    """Whether two trees are of the same containers, with the same keys and constants, around the same leaves."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Constant) and isinstance(right, Constant):
        plain = "__eq__" not in {name for kind in type(left.value).__mro__[:-1] for name in vars(kind)}
        return type(left.value) is type(right.value) and (plain or _equal(left.value, right.value))
    if isinstance(left, Branch) and isinstance(right, Branch):
        alike = left.type is right.type and left.keys == right.keys
        return alike and all(map(same_structure, left.children, right.children))
    return left == right


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return False
    try:
        equal = left == right
        return bool(equal.all() if hasattr(equal, "all") else equal)
    except Exception:  # an object whose == does not return a bool counts as different
        return False


def _listed(keys: tuple[Any, ...]) -> str:
    return ", ".join(map(str, keys)) or "nothing"


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
