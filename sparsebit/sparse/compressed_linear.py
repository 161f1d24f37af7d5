"""A linear layer that holds a 2:4 weight as its nonzero values and their positions, for cuSPARSELt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import SparsebitError


class CompressedLinear(nn.Module):
    """Replaces ``nn.Linear`` for inference, in the weight's dtype.

    On CUDA the weight is compressed. On other devices it is dense: the reference.

    Attributes:
        algorithms: by numbers of vectors, the number that cuSPARSELt has for its fastest algorithm. Other numbers of
            vectors use that of the nearest one.

    Example:
        >>> layer = CompressedLinear(torch.tensor([[0.0, 2.0, 0.0, -1.0]]), bias=torch.ones(1))
        >>> layer(torch.tensor([[4.0, 0.5, 0.0, 1.0]]))
        tensor([[1.]])
    """

    codes: Tensor
    # Vectors are padded to a multiple of it, which torch's 2:4 kernel needs.
    VECTORS = 8

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.algorithms = {0: 0}
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        self.is_compressed = weight.is_cuda
        self.register_buffer("codes", self._compress(weight.detach()))

    def forward(self, input: Tensor) -> Tensor:
        """``input @ weight.T + bias``; raises an error in a backward pass."""
        y = self._multiply(input.detach().reshape(-1, self.in_features))
        y = y.reshape(*input.shape[:-1], self.out_features)
        if torch.is_grad_enabled() and input.requires_grad:
            y = _WithoutGradient.apply(input, y)  # type: ignore[no-untyped-call]
        return y

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        held = self.codes
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        changed = self.codes.dtype != held.dtype or self.codes.device.type != held.device.type
        if self.is_compressed and changed:
            self.codes = held  # positions are stored among the values: numbers in another dtype mean nothing
            raise SparsebitError(
                "a compressed 2:4 weight cannot change its dtype or leave the GPU",
                got=f"{held.dtype} on {held.device}, in a call of to, float, half or cpu",
                hint="move the float model, and call use_sparse_kernels on the result",
            )
        return self

    def _compress(self, weight: Tensor) -> Tensor:
        return torch._cslt_compress(weight.contiguous()) if weight.is_cuda else weight

    def _multiply(self, x: Tensor) -> Tensor:
        x = x.to(self.codes.dtype) if torch.is_autocast_enabled(x.device.type) else x
        return self._products(x, self.bias) if x.is_cuda else F.linear(x, self.codes, self.bias)

    def _products(self, x: Tensor, bias: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """cuSPARSELt's products with the vectors x [vectors, in]."""
        missing = self.VECTORS - len(x) if len(x) < self.VECTORS else -len(x) % self.VECTORS
        padded = F.pad(x, (0, 0, 0, missing)) if missing else x.contiguous()
        y = torch._cslt_sparse_mm(
            self.codes,
            padded.T,
            bias=bias,
            out_dtype=dtype,
            transpose_result=True,  # one vector after the other, as a dense layer writes them
            alg_id=self.algorithm_for(len(x)),
        )
        return y[: len(x)] if missing else y

    def algorithm_for(self, vectors: int) -> int:
        """The algorithm of the nearest number of vectors."""
        found, least = 0, -1  # not min with a key, which torch.compile cannot follow
        for number, algorithm in self.algorithms.items():
            distance = abs(number - vectors)
            if least < 0 or distance < least:
                found, least = algorithm, distance
        return found

    def extra_repr(self) -> str:
        """Sizes, shown when the model is printed."""
        return f"{self.in_features}, {self.out_features}, 2:4, bias={self.bias is not None}"


class _WithoutGradient(torch.autograd.Function):
    """Passes on y, which was computed from x, until a gradient is asked for."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise SparsebitError(
            "layers with 2:4 kernels compute no gradients",
            hint="train the model first, and call use_sparse_kernels on the result",
        )
