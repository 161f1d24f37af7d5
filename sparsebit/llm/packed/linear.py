"""Layers whose weights stay packed: a kernel multiplies by them, or each product unpacks them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.llm.packed.product import KernelWeight, kernel_for, multiply_with_gradient
from sparsebit.numerics import Grid, Layout
from sparsebit.numerics.packed import PackedTensor


class PackedLayer(nn.Module):
    """The buffers of a packed weight; their description is in plain attributes, so that any state dict loads."""

    packed: Tensor
    scale: Tensor
    zero_point: Tensor
    order: Tensor | None

    def __init__(self, held: PackedTensor) -> None:
        super().__init__()
        grid = held.grid
        self.code, self.layout, self.shape, self.dtype = grid.code, grid.layout, held.shape, held.dtype
        self.register_buffer("packed", held.bits)
        self.register_buffer("scale", grid.scale)
        self.register_buffer("zero_point", grid.zero_point.to(torch.int16))
        self.register_buffer("order", grid.order)

    @property
    def held(self) -> PackedTensor:
        """The packed weight."""
        grid = Grid(self.scale, self.zero_point.float(), self.code, self.layout, self.order)
        return PackedTensor(self.packed, grid, self.shape, self.dtype)

    @property
    def weight(self) -> Tensor:
        """The dequantized weight [out, in], computed on each access."""
        return self.held.numbers()

    def _apply(self, fn, recurse: bool = True):  # type: ignore[no-untyped-def]
        """Move to another device and dtype with the model, but keep the dtype of scales, which are part of the grid."""
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=self.packed.device)).dtype
        kept = dict(self.named_buffers(recurse=False))
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, buffer in kept.items():
            made = getattr(self, name)
            empty = buffer.is_meta and not made.is_meta  # created without values, for a loader to fill
            setattr(self, name, made.to(buffer.dtype) if empty else buffer.to(made.device))
        return self


class PackedLinear(PackedLayer):
    """Replaces ``nn.Linear``; ``weight`` is the dequantized weight.

    ``transposed`` says that the replaced layer stores [in, out] (GPT-2's Conv1D).

    Example:
        >>> from sparsebit.numerics import CodeType
        >>> grid = Grid(torch.tensor([0.5, 0.25]), torch.zeros(2), CodeType("int", 4), Layout(kind="channel"))
        >>> layer = PackedLinear(PackedTensor.of(torch.tensor([[1.0, -0.5], [0.25, 1.0]]), grid), bias=None)
        >>> layer(torch.tensor([[2.0, 4.0]]))
        tensor([[0.0000, 4.5000]])
    """

    def __init__(self, held: PackedTensor, bias: Tensor | None, *, transposed: bool = False) -> None:
        super().__init__(held)
        self.transposed = transposed
        self.out_features, self.in_features = held.shape
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        # The weight in a kernel's layout, with the tensor and the kernel it was built for; built on first use.
        self._made: tuple[Tensor, type, KernelWeight | None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """``x @ weight.T + bias``."""
        kernel = self._for_kernel(x)
        if kernel is not None and not (torch.is_grad_enabled() and x.requires_grad) and kernel.covers(x):
            # Without ``held``, which takes longer to build than the kernel takes to start.
            product = kernel.multiply(x)
        else:
            product = multiply_with_gradient(x, self.held, kernel)
        return product if self.bias is None else product + self.bias.to(product.dtype)

    def _for_kernel(self, x: Tensor) -> KernelWeight | None:
        kind = kernel_for(x)
        if kind is None:
            return None
        if self._made is None or self._made[0] is not self.packed or self._made[1] is not kind:
            self._made = self.packed, kind, kind.of(self.held)
        return self._made[2]

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._made = None  # it is a copy of what was there before

    def extra_repr(self) -> str:
        """Sizes and grid, shown when the model is printed."""
        return f"{self.in_features}, {self.out_features}, {self.code}, {_grouping(self.layout)}"


class PackedEmbedding(PackedLayer):
    """Replaces ``nn.Embedding``: packed rows are gathered, and only these are unpacked.

    ``factor`` multiplies the rows, for models that scale their embeddings (Gemma).
    """

    def __init__(self, held: PackedTensor, factor: float = 1.0) -> None:
        super().__init__(held)
        self.num_embeddings, self.embedding_dim = held.shape
        self.factor = factor

    def forward(self, ids: Tensor) -> Tensor:
        """The rows of these ids, times the factor."""
        flat = ids.reshape(-1)
        rows = self.num_embeddings
        scale, point = (one.reshape(rows, -1)[flat].flatten() for one in (self.scale, self.zero_point))
        grid = Grid(scale, point.float(), self.code, self.layout, self.order)
        found = PackedTensor(self.packed[flat], grid, (len(flat), self.embedding_dim), self.dtype).numbers()
        found = found if self.factor == 1 else found * torch.tensor(self.factor).to(found)
        return found.reshape(*ids.shape, self.embedding_dim)

    def extra_repr(self) -> str:
        """Sizes and grid, shown when the model is printed."""
        return f"{self.num_embeddings}, {self.embedding_dim}, {self.code}, {_grouping(self.layout)}"


def _grouping(layout: Layout) -> str:
    return "per channel" if layout.group_size is None else f"groups of {layout.group_size}"
