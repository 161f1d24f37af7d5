"""Train against eval, gradients, precision blocks, randomness and state that forward changes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..collect import Collector
from ..entry import images

nasty = Collector()


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)


@nasty()
class FunctionalDropout(_Layer):
    """F.dropout with self.training, and its default (always on) guarded by a flag."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.dropout(self.fc(x), p=0.3, training=self.training)
        return F.dropout(y) if self.training else y


@nasty(random=True)
class DropoutAlways(_Layer):
    """Monte-Carlo dropout: on in eval mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(self.fc(x), 0.5, training=True)


class DropPath(nn.Module):
    """Drops whole samples of a residual branch while training."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        if self.rate == 0.0 or not self.training:
            return x
        keep = 1 - self.rate
        mask = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep)
        return x * mask / keep


@nasty()
class StochasticDepth(_Layer):
    """Residual branches through DropPath, one of them with rate 0."""

    def __init__(self) -> None:
        super().__init__()
        self.path, self.plain = DropPath(0.5), DropPath(0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.path(self.fc(x))
        return x + self.plain(self.fc(x).tanh())


@nasty(images(8), notes="train and eval return different structures")
class AuxiliaryHead(nn.Module):
    """A second output only while training."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head, self.aux = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.bn(self.conv(x)).relu().mean((2, 3))
        return (self.head(x), self.aux(x)) if self.training else self.head(x)


@nasty()
class NoGradBlock(_Layer):
    """A teacher branch under torch.no_grad, and a decorated method."""

    @torch.no_grad()
    def target(self, x: Tensor) -> Tensor:
        """The layer's own output, without gradient."""
        return self.fc(x).softmax(-1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            scale = self.fc(x).abs().amax(dim=1, keepdim=True)
        return self.fc(x) / (scale + 1), self.target(x)


@nasty()
class DetachedBranch(_Layer):
    """Straight-through rounding with detach, and .data."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        rounded = y + (y.round() - y).detach()
        return rounded * self.fc.weight.data.mean() + y.detach().requires_grad_(False)


@nasty()
class AutocastOff(_Layer):
    """A block that insists on float32."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        with torch.autocast(device_type=x.device.type, enabled=False):
            y = y.float() @ self.fc.weight.float()
        return y


@nasty()
class AutocastOn(_Layer):
    """A block that runs in bfloat16."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            low = self.fc(x)
            high = F.softmax(low, dim=-1)
        return low, self.fc(high.float())


@nasty()
class Casts(_Layer):
    """float64, half and bool casts through to, type, double and type_as."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x).double().to(torch.bfloat16).type(torch.float64)
        sign = (y > 0).to(x.dtype) - (y < 0).float()
        return y.type_as(x) * sign + x.to(y).to(x) + x.half().float()


def _gated(x: Tensor, bias: Tensor) -> Tensor:
    if x.dim() == 2:
        x = x + bias
    return x * torch.sigmoid(1.702 * x)


@functools.cache
def _scripted() -> Callable[[Tensor, Tensor], Tensor]:
    with warnings.catch_warnings():
        # Scripting is deprecated, and models with scripted functions are still around.
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(_gated)


@nasty()
class ScriptedFunction(_Layer):
    """Calls a function compiled by torch.jit.script."""

    def forward(self, x: Tensor) -> Tensor:
        return _scripted()(self.fc(x), self.fc.bias)


@nasty()
class Checkpointed(_Layer):
    """Recomputes a block in backward with torch.utils.checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, self.fc(x), use_reentrant=False)


class _SignSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bound: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.bound = bound
        return x.sign()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= ctx.bound), None


class _MinMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.shape = x.shape
        return x.amin(1), x.amax(1)

    @staticmethod
    def backward(ctx: Any, low: Tensor, high: Tensor) -> Tensor:
        return (low + high)[:, None].expand(ctx.shape) / ctx.shape[1]


@nasty()
class AutogradFunction(_Layer):
    """Custom backward passes: one with a number among its arguments, one with two outputs."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        low, high = _MinMax.apply(y)
        return _SignSTE.apply(y, 1.0) * (high - low)[:, None]


@nasty(stateful=True)
class BufferCounter(_Layer):
    """Counts its calls in a buffer that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x)


@nasty(stateful=True)
class BufferCounterRead(_Layer):
    """Counts its calls in place and returns the count."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        return self.fc(x) * self.calls, self.calls.clone()


@nasty(stateful=True)
class BufferReassigned(_Layer):
    """A running mean written by assigning a new tensor to the buffer's name, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.fc(x - self.mean)


@nasty()
class RunningStatWhenTraining(_Layer):
    """A running absmax updated under no_grad, only while training."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("absmax", torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                self.absmax.mul_(0.9).add_(0.1 * x.abs().max())
        return self.fc(x / self.absmax)


@nasty(stateful=True)
class ClampedWeight(_Layer):
    """Clips its own weight before each use, as Wasserstein critics did."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.fc.weight.mul_(0.5).clamp_(-0.05, 0.05)
        return self.fc(x)


@nasty(random=True)
class SampledLatent(_Layer):
    """A variational sample in eval mode: mean + std * noise."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.fc(x).chunk(2, dim=-1)
        return mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean), torch.rand(x.size(0), 2)


@nasty(images(6))
class FrozenBatchNorm(nn.Module):
    """A batch norm that stays in eval mode when the model trains, and one without running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.frozen = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.batch_only = nn.BatchNorm2d(4, track_running_stats=False)

    def train(self, mode: bool = True) -> FrozenBatchNorm:
        """Everything follows ``mode`` but the frozen norm."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.batch_only(self.frozen(self.conv(x)))


@nasty(images(6))
class FunctionalBatchNorm(nn.Module):
    """F.batch_norm on raw buffers with the module's own flag."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.register_buffer("mean", torch.randn(4) * 0.1)
        self.register_buffer("variance", torch.rand(4) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(self.conv(x), self.mean, self.variance, training=self.training, momentum=0.2)
