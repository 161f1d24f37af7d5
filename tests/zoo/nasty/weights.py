"""Weights that are computed, normalized or applied by functions instead of modules."""

from __future__ import annotations

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from ..collect import Collector, vectors
from ..entry import image_sizes, images, integers

nasty = Collector()


class _RawConv(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(outputs, inputs, 3, 3) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.kernel, padding=1)


@nasty(images(8), other_sizes=image_sizes((10, 12)))
class RawConvolutions(nn.Module):
    """F.conv2d, F.conv_transpose2d and F.linear on parameters of the root and of a child."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 3, 3, 3) * 0.2), nn.Parameter(torch.randn(4))
        self.up = nn.Parameter(torch.randn(4, 2, 2, 2))
        self.child = _RawConv(4, 4)
        self.head = nn.ParameterDict({"weight": torch.randn(5, 2)})

    def forward(self, x: Tensor) -> Tensor:
        x = torch.conv2d(x, self.weight, self.bias, stride=2, padding=1)
        x = F.conv_transpose2d(self.child(x).relu(), self.up, stride=2)
        return F.linear(x.mean((2, 3)), self.head["weight"])


@nasty(images(8), notes="its weight is no leaf: torch refuses to deep-copy the model")
class OldWeightNorm(nn.Module):
    """torch.nn.utils.weight_norm: a pre-hook recomputes a plain attribute named weight."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            # The hook-based spelling is deprecated, and many audio models still use it.
            warnings.simplefilter("ignore", FutureWarning)
            self.conv = torch.nn.utils.weight_norm(nn.Conv2d(3, 4, 3))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu())


@nasty(images(8))
class OldSpectralNorm(nn.Module):
    """torch.nn.utils.spectral_norm: a pre-hook that also updates a buffer while training."""

    def __init__(self) -> None:
        super().__init__()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # as above
            self.conv = torch.nn.utils.spectral_norm(nn.Conv2d(3, 4, 3))
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu())


@nasty(images(8))
class ParametrizedNorms(nn.Module):
    """parametrizations.weight_norm and spectral_norm."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
        self.fc = parametrizations.spectral_norm(nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).relu().mean((2, 3)))


class _Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


@nasty()
class UserParametrization(nn.Module):
    """A user's own parametrization, on a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 6)
        parametrize.register_parametrization(self.fc, "weight", _Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.fc(x).tanh())


class _SamePadded(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        rows, columns = ((-x.size(axis)) % self.stride[0] for axis in (2, 3))
        x = F.pad(x, (0, columns + 2, 0, rows + 2))
        return F.conv2d(x, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


@nasty(images(8), other_sizes=image_sizes((9, 11)))
class ConvSubclassOverridden(nn.Module):
    """A subclass of nn.Conv2d with a forward of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = _SamePadded(3, 4, 3, stride=2), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x)).relu()


class _NamedConv(nn.Conv2d):
    """Only a constructor of its own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, 4, 3, padding=1, padding_mode="circular")


@nasty(images(8))
class ConvSubclassPlain(nn.Module):
    """A subclass of nn.Conv2d that keeps its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = _NamedConv(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).relu()


@nasty(images(8))
class StandardizedConv(nn.Module):
    """Weight standardization: the kernel is normalized at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.conv.weight
        weight = (weight - weight.mean((1, 2, 3), keepdim=True)) / (
            weight.std((1, 2, 3), keepdim=True) + 1e-5
        )
        return self.norm(self.conv._conv_forward(x, weight, self.conv.bias))


@nasty()
class LowRankAdapter(nn.Module):
    """A frozen layer with a trained low-rank update beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.randn(2, 6)), nn.Parameter(torch.randn(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 0.5 * (x @ self.down.mT @ self.up.mT)


@nasty()
class SlicedWeight(nn.Module):
    """A slimmable layer: F.linear with part of the weight."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x[:, :4], self.fc.weight[:5, :4], self.fc.bias[:5])


@nasty(vectors(4, 6))
class EinsumAttention(nn.Module):
    """Attention and a bilinear form written with einsum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 6, 3) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = torch.einsum("btc,phcd->pbhtd", x, self.weight)
        scores = torch.einsum("bhtd,bhsd->bhts", query, key).softmax(-1)
        return torch.einsum("bhts,bhsd->bthd", scores, value).flatten(2)


@nasty(vectors(16))
class FourierFilter(nn.Module):
    """A global filter: real FFT, product with a complex parameter, inverse FFT."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(9, 2))
        self.phase = nn.Parameter(torch.randn(9, dtype=torch.complex64))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        spectrum = torch.fft.rfft(x, dim=-1) * torch.view_as_complex(self.filter)
        filtered = spectrum * self.phase
        return torch.fft.irfft(filtered, n=x.size(-1)), filtered.real + filtered.imag.abs() + torch.angle(
            filtered
        )


@nasty(lambda batch: ((integers(12, batch, 4),), {}), stateful=True)
class EmbeddingMaxNorm(nn.Module):
    """nn.Embedding(max_norm) rescales its own rows in place when they are looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 4, max_norm=0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.embedding(tokens).sum(1)


@nasty(vectors(4, 8))
class FunctionalAttention(nn.Module):
    """F.multi_head_attention_forward on raw parameters, with and without gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = (
            nn.Parameter(torch.randn(24, 8) * 0.3),
            nn.Parameter(torch.randn(8, 8) * 0.3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        out, _ = F.multi_head_attention_forward(
            x,
            x,
            x,
            8,
            2,
            self.inward,
            None,
            None,
            None,
            False,
            0.0,
            self.outward,
            None,
            training=self.training,
        )
        return out.transpose(0, 1)
