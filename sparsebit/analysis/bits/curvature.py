"""Curvature of the outputs, or of a loss, in each weight and activation: diagonals and traces from random probes.

Without a loss the curvature is that of half the squared distance to the model's own float outputs, whose Hessian there
is JᵀJ: no labels are needed. With e ~ N(0, 1) for every output, E[(Jᵀe)²] is its diagonal. With a loss, ``fisher`` is
the squared gradient of each batch (keep batches small), and ``hessian`` is vᵀHv with random signs v (Hutchinson), as
in HAWQ-V2 (Dong et al., arXiv 1911.03852, eq. 5).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from sparsebit.analysis.profiling.agreement import float_outputs
from sparsebit.batches import Loss, call_loss
from sparsebit.errors import SparsebitError
from sparsebit.graph.run import requiring_grad
from sparsebit.quantization import QuantModel

CurvatureKind = Literal["fisher", "hessian"]


@dataclass(frozen=True, kw_only=True)
class Curvature:
    """Measure errors by curvature instead of by running the model with each tensor quantized.

    Args:
        kind: ``fisher``: squared gradients times squared rounding errors, element by element. ``hessian``: the same
            with the mean curvature of a tensor. One backward pass for each width.
        loss: called as ``loss(outputs, *rest)``, with what a batch holds after the inputs; by default the outputs
            themselves.
        samples: random probes for each batch.
        seed: of these.
    """

    kind: CurvatureKind = "fisher"
    loss: Loss | None = None
    samples: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in get_args(CurvatureKind):
            raise SparsebitError(
                f"there is no curvature {self.kind!r}", expected=" or ".join(get_args(CurvatureKind))
            )
        for name, least in (("samples", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise SparsebitError(f"{name}: expected {least} or more", got=f"{value!r:.80}")


class Probe:
    """One batch of a float run with gradients: every weight and activation, and the curvature of the result in it.

    ``values`` and ``curvature`` are by the name of the quantizer; the curvature is a tensor of the value's shape for
    ``fisher`` and one number (the mean of the diagonal) for ``hessian``.
    """

    def __init__(self, qmodel: QuantModel, names: Sequence[str], curvature: Curvature) -> None:
        self.qmodel, self.curvature = qmodel, curvature
        self.weights = [name for name in names if qmodel.quantizers[name].side == "W"]
        self.activations = [name for name in names if qmodel.quantizers[name].side == "A"]
        self.generator = torch.Generator().manual_seed(curvature.seed)

    def run(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], rest: tuple[Any, ...]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Values and curvature for one batch; all quantizers must be off."""
        seen: dict[str, Tensor] = {}
        with torch.enable_grad(), self._kept(seen), self._trainable() as weights:
            outputs = self.qmodel(*args, **kwargs)
            values = {**weights, **{name: seen[name] for name in self.activations if name in seen}}
            totals = {name: torch.zeros_like(value) for name, value in values.items()}
            for _ in range(self.curvature.samples):
                for name, found in self._diagonal(outputs, values, rest).items():
                    totals[name] += found / self.curvature.samples
        if self.curvature.kind == "hessian":
            totals = {name: total.mean().clamp(min=0) for name, total in totals.items()}
        return {name: value.detach() for name, value in values.items()}, totals

    def _diagonal(self, outputs: Any, values: dict[str, Tensor], rest: tuple[Any, ...]) -> dict[str, Tensor]:
        tensors, loss = list(values.values()), self.curvature.loss
        twice = loss is not None and self.curvature.kind == "hessian"
        if loss is None:
            result = sum((self._noise(y) * y.float()).sum() for y in float_outputs(outputs))
        else:
            result = call_loss(loss, outputs, rest)
        if not isinstance(result, Tensor) or not result.requires_grad:
            raise SparsebitError(
                "the model's outputs have no gradient with respect to its weights",
                hint="use metric='output', which needs no gradients",
            )
        gradients = torch.autograd.grad(
            result, tensors, create_graph=twice, retain_graph=True, allow_unused=True
        )
        if all(gradient is None for gradient in gradients):
            raise SparsebitError(
                "the loss does not depend on any quantized tensor",
                hint="compute it from the outputs of the model, the first argument of the loss",
            )
        if not twice:
            return {
                name: gradient.detach().square()
                for name, gradient in zip(values, gradients, strict=True)
                if gradient is not None
            }
        linked = [
            (n, t, g)
            for n, t, g in zip(values, tensors, gradients, strict=True)
            if g is not None and g.requires_grad
        ]
        if not linked:  # a loss that is linear in every tensor
            return {}
        signs = [self._signs(t) for _, t, _ in linked]
        bent = torch.autograd.grad(
            [g for *_, g in linked], [t for _, t, _ in linked], signs, retain_graph=True, allow_unused=True
        )
        return {
            name: (sign * product).detach()
            for (name, _, _), sign, product in zip(linked, signs, bent, strict=True)
            if product is not None
        }

    def _noise(self, like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=self.generator).to(like.device)

    def _signs(self, like: Tensor) -> Tensor:
        drawn = torch.randint(0, 2, like.shape, generator=self.generator)
        return (2 * drawn - 1).to(like.device, like.dtype)

    @contextlib.contextmanager
    def _trainable(self) -> Iterator[dict[str, Tensor]]:
        found = self.qmodel.weights()
        weights = {name: found[name] for name in self.weights}
        with requiring_grad(weights.values(), True):
            yield weights

    @contextlib.contextmanager
    def _kept(self, seen: dict[str, Tensor]) -> Iterator[None]:
        """Pass every activation through a separate tensor, for which a gradient can be computed."""

        def keep(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            kept = output.clone() if output.requires_grad else output.detach().clone().requires_grad_(True)
            seen[str(module.name)] = kept
            return kept

        with contextlib.ExitStack() as hooks:
            for name in self.activations:
                hooks.enter_context(self.qmodel.quantizers[name].register_forward_hook(keep))
            yield
