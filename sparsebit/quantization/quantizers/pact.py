"""PACT: an activation with a learned clipping value (Choi et al., arXiv 1805.06085)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn

from sparsebit.config import Side, TensorSpec
from sparsebit.config.quantization.plugins import PactSettings
from sparsebit.kernels.fake_quant import clip_fused
from sparsebit.numerics import Layout
from sparsebit.numerics.grid import choose_scale
from sparsebit.numerics.snapping import compute_dtype, kernels_run_on
from sparsebit.quantization.quantizers.base import Quantizer
from sparsebit.quantization.quantizers.registration import register_quantizer


@register_quantizer
class PACT(Quantizer):
    """Clips to [0, alpha] (affine) or [-alpha, alpha] (symmetric), with a learned alpha, and fits the grid to that.

    ``alpha_value`` is the initial alpha, independent of the data. Add ``regularization()`` to the loss to keep it
    small.
    """

    TYPE = "pact"

    def __init__(self, name: str, side: Side, spec: TensorSpec, layout: Layout | None = None) -> None:
        super().__init__(name, side, spec, layout)
        start = PactSettings(**dict(spec.quantizer_options)).alpha_value  # type: ignore[arg-type]
        self.alpha = nn.Parameter(torch.tensor([float(start)]))

    def set_range(self, lo: Tensor, hi: Tensor, x: Tensor | None) -> None:
        """Set the grid from alpha; the measured range is ignored."""
        super().set_range(*self._range(), x)

    def _range(self) -> tuple[Tensor, Tensor]:
        alpha = self.alpha.detach()
        return (-alpha if self.spec.symmetric else torch.zeros_like(alpha)), alpha

    def prepare(self, x: Tensor) -> Tensor:
        """Clip."""
        lower, upper = (bound.to(x.dtype) for bound in self._range())
        return torch.maximum(torch.minimum(x, upper), lower)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scale and zero point of the grid over the current clipped range."""
        return choose_scale(*self._range(), self.code)

    def snap(self, x: Tensor) -> Tensor:
        """As for every quantizer, with a gradient to alpha if gradients are enabled."""
        if not torch.is_grad_enabled():
            return super().snap(x)
        wide = compute_dtype(x.dtype)
        scale, zero_point = self.scale_and_zero_point()
        lowest = -self.code.high if self.spec.symmetric else self.code.low  # symmetric: alpha on both sides
        scale, zero_point, alpha = scale.to(wide), zero_point.to(wide), self.alpha.to(wide)
        if kernels_run_on(x):
            ends = (lowest, self.code.high)
            fused = clip_fused(x, alpha, scale, zero_point, *ends, self.spec.symmetric)
            if fused is not None:
                return fused
        low, high = lowest - zero_point, self.code.high - zero_point
        x, dtype = x.to(wide), x.dtype
        if torch.compiler.is_compiling():
            return _snap_composed(x, alpha, scale, self.spec.symmetric).to(dtype)
        apply = cast("Callable[..., Tensor]", _Clipped.apply)
        return apply(x, alpha, scale, low, high, self.spec.symmetric).to(dtype)

    def regularization(self) -> Tensor:
        """alpha squared, to be added to the loss with a small factor (1e-4 in the old examples)."""
        return self.alpha.square().sum()


def _snap_composed(x: Tensor, alpha: Tensor, scale: Tensor, two_sided: bool) -> Tensor:
    """The function of ``_Clipped``, composed of operators with the same gradients, for compilers."""
    lower = -alpha if two_sided else torch.zeros_like(alpha)
    v = torch.where(x >= alpha, alpha, torch.where(x <= lower, lower, x)) / scale
    return (v + (v.round() - v).detach()) * scale  # the number rounded, with the gradient of v


class _Clipped(torch.autograd.Function):
    """Clip and snap at once: the ends of the clip are points of the grid.

    The gradient of alpha is the sum over the values it clips (eq. 3), with opposite sign for those clipped at -alpha.
    The input is kept for that, which costs nothing after an activation function that keeps it too.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, alpha: Tensor, scale: Tensor, low: Tensor, high: Tensor, two_sided: bool
    ) -> Tensor:
        ctx.save_for_backward(x, alpha)
        ctx.two_sided = two_sided
        return torch.div(x, scale).round_().clamp_(min=low).clamp_(max=high).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, alpha = ctx.saved_tensors
        grad = grads[0]
        lower = -alpha if ctx.two_sided else torch.zeros_like(alpha)
        # As 1.0 and 0.0: a comparison that writes bool is slow.
        over, under = torch.empty_like(x), torch.empty_like(x)
        torch.ge(x, alpha, out=over)
        torch.le(x, lower, out=under)
        to_x = to_alpha = None
        if ctx.needs_input_grad[1]:
            clipped = over - under if ctx.two_sided else over
            to_alpha = torch.dot(clipped.reshape(-1), grad.reshape(-1)).reshape(alpha.shape)
        if ctx.needs_input_grad[0]:
            to_x = torch.addcmul(grad, over.add_(under), grad, value=-1)
        return to_x, to_alpha, None, None, None, None
