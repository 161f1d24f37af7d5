"""Gradients and curvature of the loss by weight, summed over batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparsebit.batches import DataError
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.sparse.evidence.batch import Loss, LossBatch
from sparsebit.sparse.sparsers import Need

Totals = dict[Need, dict[str, Tensor]]


class Gradients:
    """Sums over batches of what is derived from gradients."""

    def __init__(
        self,
        gm: GraphModule,
        names: list[str],
        needs: frozenset[Need],
        samples: int,
        seed: int,
        call: Callable[..., Any] | None = None,
    ) -> None:
        self.call, self.needs, self.samples, self.seed = call or gm, needs, samples, seed
        self.tensors = {name: fetch_tensor(gm, name) for name in names} if needs else {}
        self.sums: Totals = {
            need: {
                name: torch.zeros_like(tensor, dtype=wide(tensor)) for name, tensor in self.tensors.items()
            }
            for need in sorted(needs)
        }
        self.generators: dict[torch.device, torch.Generator] = {}

    def update(self, batch: LossBatch, loss: Loss | None) -> None:
        """Take the gradients of one batch; those that an optimizer works with are not touched."""
        second = bool(self.needs & {"hessian_weight", "hessian_diagonal"})
        wanted = list(self.tensors.values())
        before = [tensor.requires_grad for tensor in wanted]
        for tensor in wanted:
            tensor.requires_grad_(True)
        try:
            # the fused kernels of attention cannot be differentiated twice
            kernels = sdpa_kernel(SDPBackend.MATH) if second else contextlib.nullcontext()
            with torch.enable_grad(), kernels:
                value = batch.measure(self.call(*batch.args, **batch.kwargs), loss)
                gradients = torch.autograd.grad(value, wanted, create_graph=second, allow_unused=True)
                self._add(gradients)
        except NotImplementedError as error:
            raise DataError(
                "an operator of this model cannot be differentiated twice",
                got=str(error).partition("\n")[0],
                hint="choose a criterion that needs gradients once: taylor, fisher or gradient_weight",
            ) from error
        finally:
            for tensor, flag in zip(wanted, before, strict=True):
                tensor.requires_grad_(flag)

    def _add(self, gradients: Sequence[Tensor | None]) -> None:
        for name, gradient in zip(self.tensors, gradients, strict=True):
            if gradient is None:
                continue
            plain = gradient.detach()
            if "gradient" in self.sums:
                self.sums["gradient"][name] += plain
            if "gradient_square" in self.sums:
                self.sums["gradient_square"][name] += plain.to(wide(plain)).square()
        if "hessian_weight" in self.sums:
            weights = [tensor.detach() for tensor in self.tensors.values()]
            self._add_product("hessian_weight", gradients, weights, with_vector=False)
        if "hessian_diagonal" in self.sums:
            for _ in range(self.samples):
                signs = [self._signs(tensor) for tensor in self.tensors.values()]
                self._add_product("hessian_diagonal", gradients, signs, with_vector=True)

    def _add_product(
        self, need: Need, gradients: Sequence[Tensor | None], vectors: Sequence[Tensor], *, with_vector: bool
    ) -> None:
        """The Hessian times ``vectors``, and for Hutchinson's estimate times them once more, element by element."""
        pairs = [
            (gradient, vector)
            for gradient, vector in zip(gradients, vectors, strict=True)
            if gradient is not None and gradient.requires_grad
        ]
        if not pairs:
            return
        heads, tails = zip(*pairs, strict=True)
        products = torch.autograd.grad(
            heads, list(self.tensors.values()), tails, retain_graph=True, allow_unused=True
        )
        for name, product, vector in zip(self.tensors, products, vectors, strict=True):
            if product is not None:
                part = product.detach() * vector if with_vector else product.detach()
                self.sums[need][name] += part / (self.samples if with_vector else 1)

    def _signs(self, tensor: Tensor) -> Tensor:
        generator = self.generators.setdefault(torch.device("cpu"), torch.Generator().manual_seed(self.seed))
        drawn = torch.randint(0, 2, tensor.shape, generator=generator)
        return (2 * drawn - 1).to(tensor.device, tensor.dtype)

    def finish(self, count: int) -> Totals:
        """The averages over ``count`` batches."""
        return {
            need: {name: total / count for name, total in totals.items()}
            for need, totals in self.sums.items()
        }


def wide(tensor: Tensor) -> torch.dtype:
    """What sums are kept in: float64 for float64, else float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
