"""Functions that exporters write as ONNX sequences, spelled so that they write tensors: OpenVINO reads no sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def concatenate_columns(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.hstack``."""
    parts = [torch.atleast_1d(tensor) for tensor in tensors]
    return torch.cat(parts, 0 if parts[0].dim() == 1 else 1)


def concatenate_rows(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.vstack``."""
    return torch.cat([torch.atleast_2d(tensor) for tensor in tensors], 0)


def concatenate_depth(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.dstack``."""
    return torch.cat([torch.atleast_3d(tensor) for tensor in tensors], 2)


def split_by_slices(
    input: Tensor, indices_or_sections: Any, dim: int = 0, **named: Any
) -> tuple[Tensor, ...]:
    """``torch.tensor_split``: the first parts are one longer where the length is no multiple.

    Example:
        >>> [part.tolist() for part in split_by_slices(torch.arange(5), 2)]
        [[0, 1, 2], [3, 4]]
    """
    asked = named.get("sections", named.get("indices", indices_or_sections))
    length = int(input.shape[dim])
    if isinstance(asked, int):
        sizes = [length // asked + (part < length % asked) for part in range(asked)]
    else:
        ends = [min(max(end + length if end < 0 else end, 0), length) for end in asked]
        sizes = [max(end - start, 0) for start, end in zip([0, *ends], [*ends, length], strict=True)]
    starts = [sum(sizes[:part]) for part in range(len(sizes))]
    return tuple(input.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True))


SPELLINGS: dict[Any, Callable[..., Any]] = {
    torch.hstack: concatenate_columns,
    torch.vstack: concatenate_rows,
    torch.dstack: concatenate_depth,
    torch.tensor_split: split_by_slices,
    torch.Tensor.tensor_split: split_by_slices,
}
