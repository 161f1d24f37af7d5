"""Families of labels."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from sparsebit.sparse.channels.labels import Family, family_of, reshape_family


@given(st.lists(st.integers(1, 3), min_size=1, max_size=4), st.data())
def test_a_family_gives_back_the_labels_it_was_made_of(sizes: list[int], data: st.DataObject) -> None:
    dims = data.draw(st.sets(st.sampled_from(range(len(sizes)))))
    thin = [size if dim in dims else 1 for dim, size in enumerate(sizes)]
    full = torch.arange(torch.Size(thin).numel()).reshape(thin).expand(sizes)
    family = family_of(full.clone())
    assert set(family.dims) == {dim for dim in dims if sizes[dim] > 1}
    assert torch.equal(family.full(tuple(sizes)), full)


def test_reshape_keeps_a_dim_that_survives() -> None:
    family = Family((1,), torch.arange(6))
    assert reshape_family(family, (2, 6, 4, 4), (2, 6, 16)).labels is family.labels
    flat = reshape_family(family, (2, 6, 4, 4), (2, 96))
    assert torch.equal(flat.labels, torch.arange(6).repeat_interleave(16))
    split = reshape_family(family, (2, 6, 4, 4), (2, 2, 3, 4, 4))
    assert split.dims == (1, 2)
    assert torch.equal(split.along((2, 1)), torch.arange(6).reshape(2, 3).t())
