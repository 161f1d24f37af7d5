"""Tensors as matrices in memory order: every element finds its own scale, and every tile is covered once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparsebit.kernels.tiling import DenseMatrix, as_matrix


def channel_of_memory(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """For each place in memory: the scale that the matrix gives it, and the one that broadcasting gives it."""
    found = as_matrix(x, scale)
    assert found is not None
    matrix, order = found
    flat = (scale if order is None else scale.permute(order)).reshape(-1)
    row, column = torch.meshgrid(torch.arange(matrix.rows), torch.arange(matrix.width), indexing="ij")
    by_matrix = flat[column if matrix.by_column else row % matrix.channels].flatten()
    spread = torch.empty_like(x).copy_(scale.expand_as(x))
    return by_matrix, spread.as_strided((x.numel(),), (1,))


@pytest.mark.parametrize(
    ("shape", "scale_shape"),
    [
        ((4, 6), (1,)),
        ((4, 6), (4, 1)),
        ((4, 6), (1, 6)),
        ((2, 3, 4, 5), (1, 3, 1, 1)),
        ((8, 1, 3, 3), (8, 1, 1, 1)),
        ((1, 3, 4, 5), (1, 3, 1, 1)),
        ((4, 2, 16), (4, 2, 1)),
        ((2, 7, 5), (2, 7, 1)),
        ((3, 1, 1, 1), (3, 1, 1, 1)),
        ((2, 3, 4), (2, 3, 4)),
        ((2, 3, 4, 5), (2, 3, 4, 5)),
    ],
)
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_element_finds_its_scale(
    shape: tuple[int, ...], scale_shape: tuple[int, ...], channels_last: bool
) -> None:
    x = torch.empty(shape)
    if channels_last:
        if len(shape) != 4:
            pytest.skip("channels-last memory has four dimensions")
        x = x.to(memory_format=torch.channels_last)
    by_matrix, by_broadcast = channel_of_memory(x, torch.rand(scale_shape))
    assert torch.equal(by_matrix, by_broadcast)


def test_a_transposed_weight_is_read_in_its_own_order() -> None:
    by_matrix, by_broadcast = channel_of_memory(torch.empty(6, 4).t(), torch.rand(4, 1))
    assert torch.equal(by_matrix, by_broadcast)


@pytest.mark.parametrize(
    ("x", "scale"),
    [
        (torch.empty(4, 6)[:, ::2], torch.ones(1)),  # memory with gaps
        (torch.empty(4, 1).expand(4, 6), torch.ones(1)),  # one element in many places
        (torch.empty(2, 3, 4), torch.ones(2, 1, 4)),  # channels on two axes, another between them
        (torch.empty(0, 3), torch.ones(1)),
        (torch.empty(2, 3, 4), torch.ones(3, 1)),
    ],
)
def test_other_tensors_are_left_to_the_reference(x: Tensor, scale: Tensor) -> None:
    assert as_matrix(x, scale) is None


@pytest.mark.parametrize(
    "matrix",
    [
        DenseMatrix(1, 51_380_224, 1, False),
        DenseMatrix(4096, 4096, 4096, False),
        DenseMatrix(64 * 256, 3136, 256, False),
        DenseMatrix(200_704, 256, 256, True),
        DenseMatrix(5, 3, 3, True),
        DenseMatrix(1, 1, 1, False),
    ],
)
def test_chunks_cover_the_matrix_with_none_left_empty(matrix: DenseMatrix) -> None:
    rows, columns = matrix.tile
    assert 1 <= rows * columns <= 2048
    chunks, steps = matrix.chunks
    size, tile = (matrix.rows, rows) if matrix.by_column else (matrix.width, columns)
    assert (chunks - 1) * steps * tile < size <= chunks * steps * tile
