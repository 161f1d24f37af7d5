"""Shapes and dtypes without the numbers."""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from sparsebit.graph.value import (
    TensorInfo,
    change_at,
    describe,
    items_in,
    map_items,
    map_tensors,
    real_tensors_in,
    tensors_in,
)


class CountedInt(int):
    """An int that notes being looked at, as the recorder's sizes do."""

    looks = 0

    def __int__(self) -> int:
        type(self).looks += 1
        return 0

    __index__ = __int__


def test_a_tensor_becomes_its_shape_and_dtype() -> None:
    info = describe(torch.zeros(2, 0, 3, dtype=torch.bfloat16))
    assert info == TensorInfo((2, 0, 3), torch.bfloat16)
    assert isinstance(info, TensorInfo) and info.numel == 0 and info.nbytes == 0
    assert describe(torch.tensor(1)) == TensorInfo((), torch.int64)


def test_structure_stays_and_named_tuples_become_tuples() -> None:
    pair = namedtuple("pair", "left right")
    value = {"a": pair(torch.zeros(1), 2), "b": [torch.zeros(3), None, True, "x"]}
    assert describe(value) == {
        "a": (TensorInfo((1,), torch.float32), 2),
        "b": [TensorInfo((3,), torch.float32), None, True, "x"],
    }
    assert type(describe(OrderedDict(a=1))) is dict
    assert describe(torch.zeros(2, 3).max(1)) == (
        TensorInfo((2,), torch.float32),
        TensorInfo((2,), torch.int64),
    )
    assert describe(torch.Size([2, 3])) == (2, 3)


def test_packed_sequences_are_tuples_of_tensors() -> None:
    described = describe(pack_sequence([torch.zeros(3, 4), torch.zeros(2, 4)]))
    assert [info.shape for info in tensors_in(described)] == [(5, 4), (3,)]


def test_what_cannot_be_described_is_none() -> None:
    assert describe([object(), torch.float16, torch.device("cpu")]) == [
        None,
        torch.float16,
        torch.device("cpu"),
    ]


def test_describing_leaves_no_trace_on_recorded_sizes() -> None:
    described = describe((CountedInt(3), True))
    assert described == (3, True) and CountedInt.looks == 0
    assert isinstance(described, tuple) and [type(item) for item in described] == [int, bool]


_LEAVES = st.one_of(
    st.integers(), st.none(), st.lists(st.integers(0, 3), max_size=3).map(lambda s: torch.zeros(s))
)


@given(
    st.recursive(
        _LEAVES, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)), max_leaves=8
    )
)
def test_describing_twice_changes_nothing(value: Any) -> None:
    described = describe(value)
    assert describe(described) == described
    assert list(tensors_in(describe(described))) == list(tensors_in(described))


@given(st.recursive(_LEAVES, lambda inner: st.lists(inner).map(tuple), max_leaves=8))
def test_every_tensor_is_found(value: Any) -> None:
    def count(item: Any) -> int:
        return sum(map(count, item)) if isinstance(item, tuple) else int(isinstance(item, torch.Tensor))

    assert len(list(tensors_in(describe(value)))) == count(value)


def test_nested_arguments_are_walked() -> None:
    x = torch.ones(1)
    assert list(items_in(({"a": 1}, [slice(2, None)]))) == [1, 2, None, None]
    assert real_tensors_in({"a": [x]}, 3) == [x]


def test_items_change_inside_their_nesting() -> None:
    pair, info = namedtuple("pair", "left right"), TensorInfo((2, 3), torch.int8)
    value = {"a": pair(1, [2]), "b": slice(3, None)}
    assert map_items(value, lambda item: item and -item) == {"a": (-1, [-2]), "b": slice(-3, None)}
    assert list(items_in(map_items(value, str))) == ["1", "2", "3", "None", "None"]
    assert map_tensors((info, 1, {"x": [info]}), lambda one: one.shape) == ((2, 3), 1, {"x": [(2, 3)]})


def test_one_item_changes_and_containers_keep_their_kind() -> None:
    value = (1, {"sizes": [2, slice(3, 4)]})
    changed = change_at(value, (1, "sizes", 1, "stop"), lambda end: end + 1)
    assert changed == (1, {"sizes": [2, slice(3, 5)]}) and value == (1, {"sizes": [2, slice(3, 4)]})
    assert change_at({}, ("added",), lambda old: (old, 1)) == {"added": (None, 1)}
    assert change_at(1, (), str) == "1"
