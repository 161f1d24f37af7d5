"""Nested values taken apart and put together again: a round trip over every kind of container."""

from __future__ import annotations

import collections
import dataclasses
import gc
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from sparsebit.errors import CaptureError
from sparsebit.graph.capture.call.match import match_leaves
from sparsebit.graph.capture.call.structure import (
    Branch,
    Constant,
    Leaf,
    flatten,
    leaves_of,
    shift,
    split_container,
    unflatten,
)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass
class Plain:
    first: Any
    second: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    first: Any
    second: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    first: Any
    second: Any


class Thing:
    """An object of a model's own, such as a key-value cache."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second


class OwnMapping(MutableMapping[str, Any]):
    """A mapping around a dict, which ``copy.copy`` does not copy."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self.store = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self.store[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.store[key] = value

    def __delitem__(self, key: str) -> None:
        del self.store[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.store)

    def __len__(self) -> int:
        return len(self.store)


class ReadOnly(Mapping[str, Any]):
    def __init__(self, items: Mapping[str, Any]) -> None:
        self.store = items

    def __getitem__(self, key: str) -> Any:
        return self.store[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.store)

    def __len__(self) -> int:
        return len(self.store)


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)


def as_default_dict(items: dict[str, Any]) -> collections.defaultdict[str, Any]:
    return collections.defaultdict(list, items)


PAIRED = (Pair, Plain, Frozen, Slotted, Thing)
OF_ITEMS: tuple[Callable[[list[Any]], Any], ...] = (list, tuple, collections.deque)
OF_PAIRS: tuple[Callable[[dict[str, Any]], Any], ...] = (
    dict,
    collections.OrderedDict,
    as_default_dict,
    collections.UserDict,
    lambda items: types.SimpleNamespace(**items),
)
constants = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just(torch.float16))
tensors = st.floats(-9, 9, width=32).map(torch.tensor)


def containers(inside: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keys = st.sampled_from(["a", "b", "long_name"])
    return st.one_of(
        st.builds(lambda kind, items: kind(items), st.sampled_from(OF_ITEMS), st.lists(inside, max_size=3)),
        st.builds(
            lambda kind, items: kind(items),
            st.sampled_from(OF_PAIRS),
            st.dictionaries(keys, inside, max_size=3),
        ),
        st.builds(lambda kind, one, two: kind(one, two), st.sampled_from(PAIRED), inside, inside),
    )


nested = st.recursive(st.one_of(tensors, constants), containers, max_leaves=12)


def spelled(value: Any) -> Any:
    """A value in plain words, so that two of them can be compared: types, keys, and tensors by identity."""
    if isinstance(value, Tensor):
        return ("tensor", id(value))
    parts = split_container(value)
    if parts is None:
        return ("constant", value)
    return type(value).__name__, parts[0], [spelled(item) for item in parts[1]]


@given(nested)
def test_a_round_trip_gives_the_same_structure_around_the_same_tensors(value: Any) -> None:
    before = spelled(value)
    leaves, tree = flatten(value, "x", is_tensor)
    assert spelled(unflatten(tree, leaves)) == before
    assert spelled(value) == before, "the value itself is left alone"


@given(nested)
def test_new_leaves_come_back_out_of_what_was_built_from_them(value: Any) -> None:
    leaves, tree = flatten(value, "x", is_tensor)
    new = [torch.zeros(2) + index for index in range(len(leaves))]
    built = unflatten(tree, new)
    again, same_tree = flatten(built, "x", is_tensor)
    assert [id(leaf) for leaf in again] == [id(leaf) for leaf in new]
    assert [leaf.path for leaf in leaves_of(same_tree)] == [leaf.path for leaf in leaves_of(tree)]


@given(nested)
def test_matching_finds_the_leaves_that_flattening_found(value: Any) -> None:
    leaves, tree = flatten(value, "x", is_tensor)
    found: list[Any] = []
    match_leaves(tree, value, found)
    assert [id(leaf) for leaf in found] == [id(leaf) for leaf in leaves]


@given(nested, st.integers(0, 5))
def test_leaves_are_numbered_in_order_from_the_offset(value: Any, offset: int) -> None:
    leaves, tree = flatten(value, "x", is_tensor)
    shifted = shift(tree, offset)
    assert [leaf.index for leaf in leaves_of(shifted)] == list(range(offset, offset + len(leaves)))
    assert [leaf.path for leaf in leaves_of(shifted)] == [leaf.path for leaf in leaves_of(tree)]


def test_paths_spell_the_way_to_a_leaf() -> None:
    value = {"a": [torch.ones(1), {"b": torch.ones(1)}], "c": Pair(1, torch.ones(1))}
    _, tree = flatten(value, "batch", is_tensor)
    assert [leaf.path for leaf in leaves_of(tree)] == ["batch_a_0", "batch_a_1_b", "batch_c_second"]


@pytest.mark.parametrize("make", [lambda: Thing(1, "x"), lambda: Plain(3), lambda: {"a": 1}])
def test_a_value_without_tensors_is_compared_and_not_rebuilt(make: Callable[[], Any]) -> None:
    value = make()
    leaves, tree = flatten(value, "config", is_tensor)
    assert leaves == [] and (isinstance(tree, Constant) or isinstance(value, dict))
    if isinstance(tree, Constant):
        assert unflatten(tree, []) is value


def test_what_torch_returns_and_packs_keeps_its_type() -> None:
    top = torch.arange(6.0).topk(2)
    packed = pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])
    leaves, tree = flatten([top, packed], "x", is_tensor)
    values, sequence = unflatten(tree, leaves)
    assert type(values) is type(top) and torch.equal(values.indices, top.indices)
    assert isinstance(sequence, PackedSequence) and sequence.data is packed.data


def test_an_object_that_refers_to_itself_ends() -> None:
    thing = Thing(torch.ones(2), None)
    thing.second = [thing]
    leaves, _ = flatten(thing, "x", is_tensor)
    assert len(leaves) == 1


def test_modules_functions_and_types_are_constants() -> None:
    for value in (nn.Linear(2, 2), torch.relu, Pair, len, torch, "text", torch.device("cpu")):
        leaves, tree = flatten(value, "x", is_tensor)
        assert leaves == [] and isinstance(tree, Constant) and tree.value is value


# -- what a tree keeps alive -----------------------------------------------------------------------


def kept_alive(make: Callable[[Tensor], Any]) -> bool:
    tensor = torch.ones(3)
    watched = weakref.ref(tensor)
    value = make(tensor)
    tree = flatten(value, "x", is_tensor)[1]
    del tensor, value
    gc.collect()
    assert isinstance(tree, Leaf | Branch)
    return watched() is not None


@pytest.mark.parametrize("kind", [*PAIRED, lambda a, b: [a, b], lambda a, b: collections.UserDict(a=a, b=b)])
def test_a_tree_does_not_keep_the_example_alive(kind: Callable[[Any, Any], Any]) -> None:
    assert not kept_alive(lambda tensor: kind(tensor, 1))


@pytest.mark.parametrize(
    "make",
    [
        lambda tensor: Thing([tensor], 1),
        lambda tensor: Plain(Thing(tensor, 1)),
        lambda tensor: collections.OrderedDict(a=[tensor]),
    ],
)
def test_a_tree_does_not_keep_the_example_alive_inside_an_object(make: Callable[[Tensor], Any]) -> None:
    assert not kept_alive(make)


def test_flattening_leaves_a_mapping_of_the_users_own_alone() -> None:
    value = OwnMapping({"a": torch.ones(2)})
    flatten(value, "x", is_tensor)
    assert isinstance(value["a"], Tensor)


def test_two_built_mappings_are_independent() -> None:
    _, tree = flatten(OwnMapping({"a": torch.ones(2)}), "output", is_tensor)
    first, second = unflatten(tree, [torch.zeros(1)]), unflatten(tree, [torch.ones(1)])
    assert first["a"].item() == 0 and second["a"].item() == 1


@pytest.mark.parametrize("kind", [ReadOnly, types.MappingProxyType])
def test_a_mapping_that_cannot_be_written_makes_the_round_trip(kind: Callable[[Any], Any]) -> None:
    value = kind({"a": torch.ones(2)})
    leaves, tree = flatten(value, "x", is_tensor)
    assert unflatten(tree, leaves)["a"] is leaves[0]


class SlotsOnly:
    __slots__ = ("first",)

    def __init__(self, first: Any) -> None:
        self.first = first


@pytest.mark.parametrize(
    "make",
    [
        SlotsOnly,
        lambda tensor: {tensor},
        lambda tensor: frozenset([tensor]),
        lambda tensor: {"a": tensor}.values(),
        lambda tensor: {"a": tensor}.items(),
        lambda tensor: (item for item in [tensor]),
        lambda tensor: map(torch.relu, [tensor]),
        lambda tensor: iter([tensor]),
    ],
    ids=["slots", "set", "frozenset", "values", "items", "generator", "map", "iterator"],
)
def test_tensors_never_hide_in_a_constant(make: Callable[[Tensor], Any]) -> None:
    try:
        leaves, _ = flatten(make(torch.ones(2)), "output", is_tensor)
    except CaptureError:
        return  # a refusal would do
    assert len(leaves) == 1
