"""The loss of a batch, and statistics of its gradients and its curvature."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from sparsebit.batches import Batch, DataError, Loss, call_loss, require_loss
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.run import requiring_grad
from sparsebit.sparse.evidence.statistic import Curvature, States, Statistic, register_statistic
from sparsebit.sparse.masking.masked_graph import MaskedGraph


@register_statistic("gradient")
@dataclass(frozen=True)
class Gradient(Statistic):
    """The gradient of the loss, averaged over the batches."""

    source = "gradient"

    def measure(self, seen: Tensor) -> Tensor:
        """The gradient itself."""
        return seen


@register_statistic("gradient_square")
@dataclass(frozen=True)
class GradientSquare(Statistic):
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
    """Hutchinson's estimate of the Hessian's diagonal: ``samples`` vectors of random signs per batch."""

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


def measure_loss(batch: Batch, output: Any, loss: Loss | None) -> Tensor:
    """``loss(output, *batch.rest)``: with the items of a tuple after the inputs, or with the dict itself.

    Without a loss, the loss in the output is used.
    """
    return require_loss(_own_loss(output)) if loss is None else call_loss(loss, output, batch.rest)


def _own_loss(output: Any) -> Any:
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None:
        raise DataError(
            "this criterion needs gradients, and there is no loss to differentiate",
            hint="pass loss=..., such as torch.nn.functional.cross_entropy, called with the output and the targets",
        )
    return found


class Gradients:
    """Computes gradients of the loss, and keeps the states of their statistics."""

    def __init__(self, graph: MaskedGraph, names: Sequence[str], statistics: Mapping[str, Statistic]) -> None:
        self.graph, self.states = graph, States(statistics)
        self.tensors = {name: fetch_tensor(graph.gm, name) for name in names}
        self.second = {name: one for name, one in statistics.items() if isinstance(one, Curvature)}
        self.generators = {name: torch.Generator().manual_seed(one.seed) for name, one in self.second.items()}

    def update(self, batch: Batch, loss: Loss | None) -> None:
        """Compute the gradients of one batch; the gradients of an optimizer are not changed."""
        wanted = list(self.tensors.values())
        # the fused kernels of attention cannot be differentiated twice
        kernels = sdpa_kernel(SDPBackend.MATH) if self.second else contextlib.nullcontext()
        try:
            with torch.enable_grad(), requiring_grad(wanted, True), kernels:
                value = measure_loss(batch, self.graph(*batch.args, **batch.kwargs), loss)
                gradients = torch.autograd.grad(
                    value, wanted, create_graph=bool(self.second), allow_unused=True
                )
                if all(one is None for one in gradients):
                    raise DataError(
                        "the loss does not depend on the weights that are pruned",
                        hint="compute it from the output of the model, the first argument of the loss",
                    )
                self._update_all(dict(zip(self.tensors, gradients, strict=True)))
        except NotImplementedError as error:
            raise DataError(
                "an operator of this model cannot be differentiated twice",
                got=str(error).partition("\n")[0],
                hint="choose a criterion that needs gradients once: taylor, fisher or gradient_weight",
            ) from error

    def _update_all(self, gradients: Mapping[str, Tensor | None]) -> None:
        for name, statistic in self.states.statistics.items():
            if not isinstance(statistic, Curvature):
                self.add(name, gradients)
                continue
            weights = {tensor: held.detach() for tensor, held in self.tensors.items()}
            for vectors in statistic.directions(weights, self.generators[name]):
                products = self._times_hessian(gradients, vectors).items()
                made = {
                    tensor: None if one is None else statistic.combine(one, vectors[tensor])
                    for tensor, one in products
                }
                self.add(name, made)

    def add(self, name: str, seen: Mapping[str, Tensor | None]) -> None:
        """Update one statistic of every weight; None counts as zeros."""
        for tensor, one in seen.items():
            found = torch.zeros_like(self.tensors[tensor]) if one is None else one
            self.states.add(name, tensor, found.detach())

    def finish(self, batches: int) -> dict[str, dict[str, Tensor]]:
        """The results; an error if a statistic is 0 for every weight, as any choice would be arbitrary."""
        found = self.states.finish(batches)
        for name, results in found.items():
            if results and not any(bool(one.count_nonzero()) for one in results.values()):
                raise DataError(
                    f"{name!r} of the loss is 0 for every weight, so all weights would seem equally unimportant",
                    hint="look at the loss and the data: a constant or saturated loss has no gradients, "
                    "and none are left after zero_grad()",
                )
        return found

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
