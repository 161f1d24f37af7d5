"""A linear layer whose weight stays packed: unpacked for each product, never kept in float."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.llm.packed.weight import PackedWeight
from sparsebit.numerics import Grid, Layout


class _Packed(nn.Module):
    """The buffers of a packed weight; what they mean is in plain attributes, so that any state dict loads."""

    packed: Tensor
    scale: Tensor
    zero_point: Tensor

    def __init__(self, held: PackedWeight) -> None:
        super().__init__()
        grid = held.grid
        self.code, self.layout, self.shape = grid.code, grid.layout, held.shape
        self.register_buffer("packed", held.packed)
        self.register_buffer("scale", grid.scale)
        self.register_buffer("zero_point", grid.zero_point.to(torch.int16))

    @property
    def held(self) -> PackedWeight:
        """The packed weight."""
        grid = Grid(self.scale, self.zero_point.float(), self.code, self.layout)
        return PackedWeight(self.packed, grid, self.shape)

    @property
    def weight(self) -> Tensor:
        """The numbers of the weight, [out, in], made anew each time."""
        return self.held.weight()

    def _apply(self, fn, recurse: bool = True):  # type: ignore[no-untyped-def]
        """Follow the model to another device, but keep the dtype of the scales: they are part of the numbers."""
        dtypes = {name: buffer.dtype for name, buffer in self.named_buffers(recurse=False)}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, dtype in dtypes.items():
            setattr(self, name, getattr(self, name).to(dtype))
        return self


class PackedLinear(_Packed):
    """Stands in for ``nn.Linear``; ``weight`` is the float view of what is held.

    Example:
        >>> from sparsebit.numerics import CodeType
        >>> grid = Grid(torch.tensor([0.5, 0.25]), torch.zeros(2), CodeType("int", 4), Layout(kind="channel"))
        >>> layer = PackedLinear(PackedWeight.of(torch.tensor([[1.0, -0.5], [0.25, 1.0]]), grid), bias=None)
        >>> layer(torch.tensor([[2.0, 4.0]]))
        tensor([[0.0000, 4.5000]])
    """

    def __init__(self, held: PackedWeight, bias: Tensor | None) -> None:
        super().__init__(held)
        self.out_features, self.in_features = held.shape
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """``x @ weight.T + bias``."""
        return F.linear(x, self.held.weight(x.dtype), self.bias)

    def extra_repr(self) -> str:
        """Sizes and grid, as printing the model shows them."""
        return f"{self.in_features}, {self.out_features}, {self.code}, {_grouping(self.layout)}"


class PackedEmbedding(_Packed):
    """Stands in for ``nn.Embedding``: rows are gathered packed, and only those are unpacked."""

    def __init__(self, held: PackedWeight) -> None:
        super().__init__(held)
        self.num_embeddings, self.embedding_dim = held.shape

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of these ids."""
        flat = ids.reshape(-1)
        rows = self.num_embeddings
        per_row = {
            name: getattr(self, name).reshape(rows, -1)[flat].flatten() for name in ("scale", "zero_point")
        }
        grid = replace(self.held.grid, scale=per_row["scale"], zero_point=per_row["zero_point"].float())
        found = PackedWeight(self.packed[flat], grid, (len(flat), self.embedding_dim)).weight()
        return found.reshape(*ids.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        """Sizes and grid, as printing the model shows them."""
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.code}, {_grouping(self.layout)}"


def _grouping(layout: Layout) -> str:
    return "per channel" if layout.group_size is None else f"groups of {layout.group_size}"
