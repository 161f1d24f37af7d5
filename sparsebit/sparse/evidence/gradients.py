"""Statistics of the gradients and the curvature of the loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparsebit.batches import Batch, DataError
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.sparse.evidence.loss import Loss, measure_loss
from sparsebit.sparse.evidence.statistic import Curvature, Statistic, Sum, register_statistic
from sparsebit.sparse.masking.masked_graph import MaskedGraph


@register_statistic("gradient")
@dataclass(frozen=True)
class Gradient(Sum):
    """The gradient of the loss, averaged over the batches."""

    source = "gradient"

    def measure(self, seen: Tensor) -> Tensor:
        """The gradient itself."""
        return seen


@register_statistic("gradient_square")
@dataclass(frozen=True)
class GradientSquare(Sum):
    """The gradient of the loss, squared in every batch, then averaged."""

    source = "gradient"

    def measure(self, seen: Tensor) -> Tensor:
        """The square, element by element."""
        return seen.square()


@register_statistic("hessian_weight")
@dataclass(frozen=True)
class HessianWeight(Curvature):
    """The Hessian of the loss times all weights."""

    def directions(
        self, weights: Mapping[str, Tensor], generator: torch.Generator
    ) -> Iterator[Mapping[str, Tensor]]:
        """The weights themselves."""
        yield weights

    def combine(self, product: Tensor, vector: Tensor) -> Tensor:
        """The product."""
        return product


@register_statistic("hessian_diagonal")
@dataclass(frozen=True)
class HessianDiagonalEstimate(Curvature):
    """Hutchinson's estimate of the Hessian's diagonal: ``samples`` vectors of random signs a batch."""

    samples: int = 1
    seed: int = 0

    def directions(
        self, weights: Mapping[str, Tensor], generator: torch.Generator
    ) -> Iterator[Mapping[str, Tensor]]:
        """Random signs, drawn on the CPU so that every device gets the same."""
        for _ in range(self.samples):
            drawn = {
                name: torch.randint(0, 2, one.shape, generator=generator) for name, one in weights.items()
            }
            yield {name: (2 * signs - 1).to(weights[name]) for name, signs in drawn.items()}

    def combine(self, product: Tensor, vector: Tensor) -> Tensor:
        """v (H v), element by element."""
        return product * vector / self.samples


class Gradients:
    """Takes gradients of the loss, and keeps the states of statistics of them."""

    def __init__(self, graph: MaskedGraph, names: Sequence[str], statistics: Mapping[str, Statistic]) -> None:
        self.graph, self.statistics = graph, statistics
        self.tensors = {name: fetch_tensor(graph.gm, name) for name in names}
        self.states: dict[tuple[str, str], Any] = {}  # by statistic and weight
        self.second = {name: one for name, one in statistics.items() if isinstance(one, Curvature)}
        self.generators = {name: torch.Generator().manual_seed(one.seed) for name, one in self.second.items()}

    def update(self, batch: Batch, loss: Loss | None) -> None:
        """Take the gradients of one batch; those that an optimizer works with are not touched."""
        wanted = list(self.tensors.values())
        before = [tensor.requires_grad for tensor in wanted]
        for tensor in wanted:
            tensor.requires_grad_(True)
        try:
            # the fused kernels of attention cannot be differentiated twice
            kernels = sdpa_kernel(SDPBackend.MATH) if self.second else contextlib.nullcontext()
            with torch.enable_grad(), kernels:
                value = measure_loss(batch, self.graph(*batch.args, **batch.kwargs), loss)
                gradients = torch.autograd.grad(
                    value, wanted, create_graph=bool(self.second), allow_unused=True
                )
                self._update_all(dict(zip(self.tensors, gradients, strict=True)))
        except NotImplementedError as error:
            raise DataError(
                "an operator of this model cannot be differentiated twice",
                got=str(error).partition("\n")[0],
                hint="choose a criterion that needs gradients once: taylor, fisher or gradient_weight",
            ) from error
        finally:
            for tensor, flag in zip(wanted, before, strict=True):
                tensor.requires_grad_(flag)

    def _update_all(self, gradients: Mapping[str, Tensor | None]) -> None:
        for name, statistic in self.statistics.items():
            if not isinstance(statistic, Curvature):
                for tensor, gradient in gradients.items():
                    self.add(name, tensor, None if gradient is None else gradient.detach())
                continue
            weights = {tensor: held.detach() for tensor, held in self.tensors.items()}
            for vectors in statistic.directions(weights, self.generators[name]):
                for tensor, product in self._times_hessian(gradients, vectors).items():
                    made = None if product is None else statistic.combine(product.detach(), vectors[tensor])
                    self.add(name, tensor, made)

    def add(self, name: str, tensor: str, seen: Tensor | None) -> None:
        """Update one statistic of one weight; None counts as zeros."""
        statistic, key = self.statistics[name], (name, tensor)
        state = self.states[key] if key in self.states else statistic.init()
        zeros = torch.zeros_like(self.tensors[tensor], requires_grad=False) if seen is None else seen
        self.states[key] = statistic.update(state, zeros)

    def _times_hessian(
        self, gradients: Mapping[str, Tensor | None], vectors: Mapping[str, Tensor]
    ) -> dict[str, Tensor | None]:
        pairs = [
            (one, vectors[name]) for name, one in gradients.items() if one is not None and one.requires_grad
        ]
        if not pairs:
            return dict.fromkeys(self.tensors)
        heads, tails = zip(*pairs, strict=True)
        products = torch.autograd.grad(
            heads, list(self.tensors.values()), tails, retain_graph=True, allow_unused=True
        )
        return dict(zip(self.tensors, products, strict=True))

    def finish(self, batches: int) -> dict[str, dict[str, Tensor]]:
        """By statistic and weight."""
        found: dict[str, dict[str, Tensor]] = {name: {} for name in self.statistics}
        for (name, tensor), state in self.states.items():
            found[name][tensor] = self.statistics[name].finish(state, batches)
        return found
