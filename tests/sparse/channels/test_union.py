"""Disjoint sets against the obvious implementation."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.sparse.channels.union import UnionFind


@given(st.lists(st.lists(st.tuples(st.integers(0, 19), st.integers(0, 19)), max_size=8), max_size=6))
def test_classes_are_the_connected_components(batches: list[list[tuple[int, int]]]) -> None:
    sets = UnionFind()
    sets.fresh(20)
    naive = list(range(20))
    for batch in batches:
        sets.join(torch.tensor([a for a, _ in batch]).long(), torch.tensor([b for _, b in batch]).long())
        for a, b in batch:
            low, high = sorted((naive[a], naive[b]))
            naive = [low if label == high else label for label in naive]
    assert sets.roots().tolist() == naive


def test_shapes_broadcast_and_memory_grows() -> None:
    sets = UnionFind()
    labels = sets.fresh(3000)
    sets.join(labels[:1], labels.reshape(3, 1000))
    assert sets.find(labels.reshape(30, 100)).eq(0).all()


def test_a_merge_that_changes_nothing_keeps_the_version() -> None:
    sets = UnionFind()
    labels = sets.fresh(4)
    sets.join(labels[:2], labels[2:])
    before = sets.version
    sets.join(labels[2:], labels[:2])
    assert sets.version == before
