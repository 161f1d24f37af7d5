"""Weights snapped in one launch: the tables on any machine, the results on the GPU."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import grouped as benchmark
from sparsebit.kernels.grouped import CHUNK, Member, WeightGroup
from sparsebit.numerics import Layout
from sparsebit.numerics.snapping import matrix_of


def members() -> list[Member]:
    found = []
    for shape, layout, scales in (
        ((8, 4, 3, 3), Layout(kind="channel"), 8),
        ((2, 2 * CHUNK + 40), Layout(kind="channel"), 2),
        ((16, 8), Layout(), 1),
    ):
        weight = torch.empty(shape)
        matrix = matrix_of(weight.shape, weight.stride(), layout, scales)
        assert matrix is not None
        found.append(Member(shape, weight.stride(), matrix, -8, 7, 0.5))
    return found


def test_chunks_cover_every_number_once_with_its_own_scale() -> None:
    group = WeightGroup(members(), torch.device("cpu"), magnitude=False)
    owner = torch.full((group.size,), -1)
    for start, length, channel in zip(
        group.starts.tolist(), group.lengths.tolist(), group.owner.tolist(), strict=True
    ):
        assert (owner[start : start + length] == -1).all() and 0 < length <= CHUNK
        owner[start : start + length] = channel
    expected = [
        *torch.arange(8).repeat_interleave(36),
        *torch.arange(8, 10).repeat_interleave(2 * CHUNK + 40),
    ]
    assert torch.equal(owner, torch.tensor([int(channel) for channel in expected] + [10] * 128))
    assert group.counts.tolist() == [1] * 8 + [3, 3, 1] and group.first.tolist() == [*range(8), 8, 11, 14]
    assert group.low.tolist() == [-8.0] * 11 and group.factor.tolist() == [0.5] * 11


def test_views_have_the_shape_and_the_memory_of_the_weights() -> None:
    group = WeightGroup(members(), torch.device("cpu"), magnitude=False)
    flat = torch.arange(group.size)
    first, second, third = group.cut(flat)
    assert first.shape == (8, 4, 3, 3) and second[0, 0] == 288 and third.flatten()[-1] == group.size - 1
    assert first.data_ptr() == flat.data_ptr()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["lsq", "uniform"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_is_that_of_weights_alone(kind: str, dtype: torch.dtype) -> None:
    assert benchmark.compare(kind, dtype) is None
