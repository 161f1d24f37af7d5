"""Every element is in exactly one row, with exactly those that share its scale, by a definition index by index."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.numerics.layout import (
    Layout,
    activation_axis,
    align,
    join_blocks,
    row_blocks,
    row_count,
    spread,
    to_rows,
    to_samples,
)


def key(index: tuple[int, ...], shape: tuple[int, ...], rows: Layout) -> tuple[int, ...]:
    """What elements must have in common to share a scale, said without tensors."""
    if rows.kind == "tensor" or not index:
        return ()
    if rows.kind == "token":
        return index[:-1]
    out = tuple(index[axis] for axis in rows.axes)
    into = rows.input_axis
    per_group = shape[0] // rows.groups
    first = (index[0] // per_group,) if rows.groups > 1 else ()
    if rows.kind == "channel":
        return (*first, *out)
    place = index[into] % per_group if into == 0 else index[into]
    return (*first, *out, place // (rows.group_size or 1))


def labels(shape: tuple[int, ...], rows: Layout) -> Tensor:
    """The row each element belongs to, by ``key``."""
    keys = [key(index, shape, rows) for index in itertools.product(*map(range, shape))]
    number = {k: n for n, k in enumerate(sorted(set(keys)))}
    return torch.tensor([number[k] for k in keys]).reshape(shape)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], Layout]:
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=5)))
    kind = draw(st.sampled_from(["tensor", "channel", "group", "token"]))
    if kind == "channel":
        return shape, Layout(kind="channel", axes=(draw(st.integers(-len(shape), len(shape) - 1)),))
    if kind == "group":
        order = draw(st.permutations(range(len(shape))))
        axes = tuple(order[1 : 1 + draw(st.integers(0, 2))])  # none for a vector, two for stacked experts
        return shape, Layout(kind="group", axes=axes, input_axis=order[0], group_size=draw(st.integers(1, 6)))
    return shape, Layout(kind=kind)  # type: ignore[arg-type]


@st.composite
def transposed_weights(draw: st.DrawFn) -> tuple[tuple[int, ...], Layout]:
    groups = draw(st.integers(1, 3))
    shape = (groups * draw(st.integers(1, 5)), *draw(st.lists(st.integers(1, 4), min_size=1, max_size=4)))
    if draw(st.booleans()):
        return shape, Layout(kind="channel", axes=(1,), groups=groups)
    return shape, Layout(
        kind="group", axes=(1,), input_axis=0, groups=groups, group_size=draw(st.integers(1, 4))
    )


cases = st.one_of(tensors(), transposed_weights())


def numbered(shape: tuple[int, ...]) -> Tensor:
    return torch.arange(math.prod(shape)).reshape(shape)


@given(cases)
def test_each_row_holds_exactly_the_elements_that_share_a_scale(case: tuple[tuple[int, ...], Layout]) -> None:
    shape, rows = case
    expected = labels(shape, rows)
    assert row_count(shape, rows) == expected.max() + 1
    blocks = row_blocks(numbered(shape), rows)
    names = [torch.full((len(block),), number) for number, block in enumerate(blocks)]
    order = join_blocks(names)  # which block the rows come from
    found = [iter(block) for block in blocks]
    seen = torch.cat([next(found[int(block)]) for block in order])
    row = torch.cat([torch.full((blocks[int(b)].shape[1],), r) for r, b in enumerate(order)])
    assert seen.sort().values.equal(torch.arange(seen.numel()))
    assert expected.flatten()[seen].equal(row)


@given(cases)
def test_spread_gives_every_element_the_value_of_its_row(case: tuple[tuple[int, ...], Layout]) -> None:
    shape, rows = case
    expected = labels(shape, rows)
    values = torch.arange(row_count(shape, rows))
    assert spread(values, shape, rows).expand(shape).equal(expected)
    view, (aligned,) = align(torch.zeros(shape, dtype=torch.long), rows, values)
    assert (view + aligned).reshape(shape).equal(expected)


@given(cases)
def test_blocks_of_one_length_are_the_rows(case: tuple[tuple[int, ...], Layout]) -> None:
    shape, rows = case
    blocks = row_blocks(numbered(shape), rows)
    if len(blocks) == 1:
        assert to_rows(numbered(shape), rows).equal(blocks[0])


@given(tensors())
def test_the_order_inside_a_row_may_change_and_nothing_else(case: tuple[tuple[int, ...], Layout]) -> None:
    shape, rows = case
    if rows.kind == "group":
        return
    x = (
        numbered(shape)
        .permute(*reversed(range(len(shape))))
        .contiguous()
        .permute(*reversed(range(len(shape))))
    )
    assert to_rows(x, rows, any_order=True).sort(1).values.equal(to_rows(x, rows).sort(1).values)


def test_channels_last_memory_is_not_copied() -> None:
    x = torch.zeros(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert to_rows(x, Layout(), any_order=True).data_ptr() == x.data_ptr()
    assert to_samples(x, Layout()).data_ptr() == x.data_ptr()
    assert to_rows(torch.zeros(4, 6), Layout(kind="group", group_size=3)).shape == (8, 3)


@pytest.mark.parametrize("shape", [(), (7,), (2, 7), (2, 5, 7), (2, 3, 4, 5), (2, 3, 4, 5, 6)])
@pytest.mark.parametrize("layout", ["NCHW", "NLC"])
def test_activations_of_any_rank_have_channels(shape: tuple[int, ...], layout: str) -> None:
    axis = activation_axis(len(shape), layout)  # type: ignore[arg-type]
    rows = Layout(kind="channel", axes=(axis,))
    channels = shape[axis] if shape else 1
    assert row_count(shape, rows) == channels
    assert to_rows(torch.zeros(shape), rows).shape == (channels, math.prod(shape) // channels)
    for kind in ("tensor", "token"):
        assert to_rows(torch.zeros(shape), Layout(kind=kind)).numel() == math.prod(shape)


@pytest.mark.parametrize(
    ("shape", "rows", "expected"),
    [
        ((6, 2, 3), Layout(), (1, 6, 6)),
        ((6, 2, 3), Layout(kind="channel", axes=(1,)), (2, 6, 3)),
        ((6, 2, 3), Layout(kind="channel", axes=(-1,)), (3, 6, 2)),
        ((6, 4), Layout(kind="channel", axes=(1,)), (4, 6, 1)),
        ((6,), Layout(), (1, 1, 6)),
        ((6, 4), Layout(kind="channel", axes=(0,)), (6, 1, 4)),
    ],
)
def test_samples_stay_apart(shape: tuple[int, ...], rows: Layout, expected: tuple[int, ...]) -> None:
    x = numbered(shape)
    samples = to_samples(x, rows)
    assert samples.shape == expected
    assert samples.flatten(1).sort(1).values.equal(to_rows(x, rows).sort(1).values)
    if expected[1] == shape[0]:
        assert samples[:, 3].flatten().sort().values.equal(x[3].flatten().sort().values)


def test_empty_tensors_have_rows() -> None:
    assert to_rows(torch.zeros(0, 3, 4), Layout(kind="channel", axes=(1,))).shape == (3, 0)
    assert to_rows(torch.zeros(0), Layout()).shape == (1, 0)
    assert to_samples(torch.zeros(0, 3, 4), Layout()).shape == (1, 0, 12)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(SparsebitError, match="group_size belongs to the granularity 'group'"):
        Layout(kind="channel", group_size=4)
    with pytest.raises(SparsebitError, match="group_size belongs"):
        Layout(kind="group")
    with pytest.raises(SparsebitError, match="at least one element"):
        Layout(kind="group", group_size=0)
    with pytest.raises(SparsebitError, match="weight of a transposed convolution"):
        Layout(kind="channel", axes=(0,), groups=2)
    with pytest.raises(SparsebitError, match=r"(?s)two lengths.*7 input channels in groups of 3.*row_blocks"):
        to_rows(torch.zeros(2, 7), Layout(kind="group", group_size=3))
    with pytest.raises(SparsebitError, match=r"(?s)number of scales.*expected: 2.*got: +3"):
        align(torch.zeros(2, 7), Layout(kind="channel"), torch.zeros(3))
    with pytest.raises(SparsebitError, match=r"(?s)number of scales.*a multiple of 3.*got: +8"):
        align(torch.zeros(2, 7), Layout(kind="group", group_size=3), torch.zeros(8))
    with pytest.raises(SparsebitError, match=r"(?s)input axis, which cannot be an output axis"):
        Layout(kind="group", axes=(1,), group_size=3)
    with pytest.raises(SparsebitError, match=r"shape \(2, 7\) has no axis 2"):
        to_rows(torch.zeros(2, 7), Layout(kind="channel", axes=(2,)))
    with pytest.raises(SparsebitError, match=r"(?s)unknown granularity.*tensor, channel, group, token"):
        Layout(kind="row")  # type: ignore[arg-type]


def test_groups_in_another_order_follow_the_permutation() -> None:
    """Input channel order[j] belongs to group j // size, as with GPTQ's act-order."""
    order = torch.tensor([4, 0, 3, 1, 5, 2])
    layout = Layout(kind="group", group_size=4)  # the second group is shorter
    got = spread(torch.tensor([0.0, 1.0, 2.0, 3.0]), (2, 6), layout, order)
    group = {4: 0, 0: 0, 3: 0, 1: 0, 5: 1, 2: 1}
    assert got.tolist() == [[2.0 * row + group[column] for column in range(6)] for row in range(2)]
