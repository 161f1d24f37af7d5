"""Flatten nested inputs and outputs to tensors, and rebuild them.

``torch.utils._pytree`` knows tuples, lists, dicts and what was registered with it. Models also pass dataclasses,
mappings of their own, packed sequences and cache objects, and those must survive without registering anything
globally on the user's behalf.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence, Set, ValuesView
from functools import partial
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from sparsebit.errors import CaptureError, with_article
from sparsebit.graph.capture.call.input_size import InputSize

Builder = partial[Any]  # called with the new items
_CODE = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType)
_NUMBERS = (type(None), bool, int, float, complex, str, bytes)
_ATOMS = (*_NUMBERS, enum.Enum, torch.dtype, torch.device, type, nn.Module)


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor: its index in the flat list, its path in the arguments, and the kind of the example's tensor."""

    index: int
    path: str
    anything: bool = False  # not known to be a tensor (front-end without example inputs)
    rank: int | None = dataclasses.field(default=None, compare=False)
    dtype: torch.dtype | None = dataclasses.field(default=None, compare=False)
    given: bool = False  # the model was traced with this argument, so it must be passed
    sizes: tuple[InputSize, ...] = dataclasses.field(default=(), compare=False)  # one for each dimension
    reads_dtype: str | None = None  # the line of the model that computes with the dtype, which is then fixed


@dataclasses.dataclass(frozen=True)
class Constant:
    """A value that is not a tensor; a call must bring an equal one."""

    value: Any
    path: str


@dataclasses.dataclass(frozen=True)
class Branch:
    """A container: its keys, its children, and how to rebuild it from new children."""

    type: type
    keys: tuple[Any, ...]
    children: tuple[Tree, ...]
    build: Builder
    path: str


Tree = Leaf | Constant | Branch


# Functions that build a container again around new items, in ``functools.partial``: a closure could not be pickled.


def _from_items(kind: type, items: list[Any]) -> Any:
    if kind is torch.Size and not all(isinstance(item, int) for item in items):
        return tuple(items)
    return kind(items)


def _from_fields(kind: type, items: list[Any]) -> Any:
    return kind(*items)


def _from_pairs(kind: type, keys: tuple[Any, ...], template: Any, items: list[Any]) -> Any:
    """A mapping: ``kind(**pairs)``, or a copy of the template with every value replaced."""
    pairs = dict(zip(keys, items, strict=True))
    if template is None:
        return pairs if kind is dict else kind(**pairs)
    if not isinstance(template, MutableMapping):
        return kind(pairs)
    built = _shallow_copy(template)
    for key, item in pairs.items():
        built[key] = item
    return built


def _from_attributes(names: tuple[str, ...], template: Any, items: list[Any]) -> Any:
    """A copy of an object with its attributes replaced."""
    built = _shallow_copy(template)
    for name, item in zip(names, items, strict=True):
        object.__setattr__(built, name, item)
    return built


def _from_pytree(kind: type, context: Any, items: list[Any]) -> Any:
    """What was registered with torch's pytree."""
    return pytree.SUPPORTED_NODES[kind].unflatten_fn(items, context)


Parts = tuple[tuple[Any, ...], list[Any], Builder]


def split_container(value: Any) -> Parts | None:
    """Keys, children and rebuilding function of a container, or None for anything that is not one."""
    kind = type(value)
    if isinstance(value, (*_ATOMS, torch.Tensor)):
        return None
    if isinstance(value, tuple) and hasattr(kind, "_fields"):  # namedtuple, PackedSequence
        return kind._fields, list(value), partial(_from_fields, kind)
    if isinstance(value, tuple | list | deque):  # torch.Size and torch.return_types.* among them
        return tuple(range(len(value))), list(value), partial(_from_items, kind)
    if isinstance(value, Mapping):
        keys = tuple(value.keys())
        # transformers' ModelOutput is an OrderedDict and a dataclass in one, and is built like a dataclass
        own = kind is not dict and not dataclasses.is_dataclass(kind)
        return keys, list(value.values()), partial(_from_pairs, kind, keys, value if own else None)
    if not dataclasses.is_dataclass(value) and kind in pytree.SUPPORTED_NODES:
        children, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        return tuple(range(len(children))), list(children), partial(_from_pytree, kind, context)
    if dataclasses.is_dataclass(value):
        names = tuple(field.name for field in dataclasses.fields(value))
    elif not isinstance(value, _CODE):
        slots = [name for base in kind.__mro__ for name in _as_names(getattr(base, "__slots__", ()))]
        names = (*getattr(value, "__dict__", ()), *(name for name in slots if hasattr(value, name)))
    else:
        return None
    if not names:
        return None
    return names, [getattr(value, name) for name in names], partial(_from_attributes, names, value)


def _as_names(slots: str | Iterable[str]) -> list[str]:
    return [slots] if isinstance(slots, str) else [name for name in slots if not name.startswith("__")]


def _shallow_copy(value: Any) -> Any:
    """A copy that shares the items but not the containers they are in (a mapping may keep a dict inside)."""
    copied = copy.copy(value)
    own = getattr(copied, "__dict__", {})
    own.update({name: item.copy() for name, item in own.items() if isinstance(item, dict | list | set)})
    return copied


def _drop_tensors(build: Builder, children: Sequence[Tree]) -> Builder:
    """The same builder with a template that keeps only the constants of the example."""
    *settings, template = build.args
    values = [child.value if isinstance(child, Constant) else None for child in children]
    mapping = build.func is _from_pairs and isinstance(template, MutableMapping)
    if mapping or build.func is _from_attributes:
        return partial(build.func, *settings, build(values))
    return build


def flatten(value: Any, path: str, is_leaf: Callable[[Any], bool]) -> tuple[list[Any], Tree]:
    """Flatten ``value`` to the leaves that ``is_leaf`` picks, and the tree around them.

    A container without a single leaf becomes one constant, so that config objects are compared, not rebuilt.

    Example:
        >>> leaves, tree = flatten({"a": [1.0, 2]}, "batch", lambda item: isinstance(item, float))
        >>> leaves, unflatten(tree, [3.0])
        ([1.0], {'a': [3.0, 2]})
    """
    leaves: list[Any] = []

    def visit(item: Any, where: str, enclosing: tuple[int, ...]) -> Tree:
        if is_leaf(item):
            leaves.append(item)
            tensor = isinstance(item, torch.Tensor)
            facts = (item.dim(), item.dtype) if tensor else (None, None)
            return Leaf(len(leaves) - 1, where, False, *facts)
        parts = None if id(item) in enclosing else split_container(item)
        if parts is None:
            _refuse_hidden_tensors(item, where, is_leaf)
            return Constant(item, where)
        keys, items, build = parts
        before = len(leaves)
        inside = (*enclosing, id(item))
        children = tuple(
            visit(child, f"{where}_{key}", inside) for key, child in zip(keys, items, strict=True)
        )
        if len(leaves) == before and type(item) not in (tuple, list, dict):
            return Constant(item, where)
        return Branch(type(item), keys, children, _drop_tensors(build, children), where)

    return leaves, visit(value, path, ())


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in containers of any kind, in order.

    Example:
        >>> from types import SimpleNamespace
        >>> tensors_of({"a": SimpleNamespace(b=torch.ones(1), c=2)})
        [tensor([1.])]
    """
    return flatten(value, "value", lambda item: isinstance(item, torch.Tensor))[0]


def _refuse_hidden_tensors(value: Any, where: str, is_leaf: Callable[[Any], bool]) -> None:
    """A container without an order, or one that can be read only once, cannot be flattened and rebuilt."""
    views = isinstance(value, Set | ValuesView)
    unordered = views and any(
        is_leaf(part) for item in value for part in (item if type(item) is tuple else (item,))
    )
    if unordered or isinstance(value, Iterator):
        raise CaptureError(
            f"{where!r} holds tensors in {with_article(type(value).__name__)}, which cannot be rebuilt",
            expected="tuples, lists, dicts, dataclasses and objects with attributes",
            hint="let the model take or return a list or a dict",
        )


def unflatten(tree: Tree, leaves: list[Any] | tuple[Any, ...]) -> Any:
    """The opposite of ``flatten``, with new leaves."""
    if isinstance(tree, Leaf):
        return leaves[tree.index]
    if isinstance(tree, Constant):
        return tree.value
    return tree.build([unflatten(child, leaves) for child in tree.children])


def map_leaves(tree: Tree, change: Callable[[Leaf], Leaf]) -> Tree:
    """The same tree with other leaves."""
    if isinstance(tree, Leaf):
        return change(tree)
    if isinstance(tree, Branch):
        return dataclasses.replace(tree, children=tuple(map_leaves(child, change) for child in tree.children))
    return tree


def shift(tree: Tree, offset: int) -> Tree:
    """The same tree with its leaves further back in the flat list."""
    return map_leaves(tree, lambda leaf: dataclasses.replace(leaf, index=leaf.index + offset))


def with_limits(tree: Tree, sizes: Sequence[tuple[InputSize, ...]], reads_dtype: str | None = None) -> Tree:
    """The same tree with what is known of its leaves: sizes in the order of the flat list, who reads the dtype."""

    def limit(leaf: Leaf) -> Leaf:
        floating = leaf.dtype is not None and leaf.dtype.is_floating_point
        return dataclasses.replace(
            leaf, sizes=sizes[leaf.index], reads_dtype=reads_dtype if floating else None
        )

    return map_leaves(tree, limit)


def leaves_of(tree: Tree) -> Iterator[Leaf]:
    """Every leaf below a tree, in order."""
    if isinstance(tree, Leaf):
        yield tree
    elif isinstance(tree, Branch):
        for child in tree.children:
            yield from leaves_of(child)
