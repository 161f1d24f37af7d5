"""Fourier transforms. They count no MACs: how many there are depends on the algorithm."""

from __future__ import annotations

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named, present

_ONE = "input, n=None, dim=-1, norm=None"
_MANY = "input, s=None, dim=None, norm=None"


def _fft(name: str, signature: str, channels: str = "") -> OpSpec:
    return OpSpec(
        name=name,
        targets=(*present(torch.fft, name), *present(torch, f"fft_{name}"), f"aten::fft_{name}"),
        family="signal",
        signature=signature,
        channels=channels,
    )


OPS = (
    *(_fft(name, _ONE, "along_dim") for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")),
    *(_fft(name, "input, s=None, dim=(-2, -1), norm=None") for name in ("fft2", "ifft2", "rfft2", "irfft2")),
    *(_fft(name, _MANY) for name in ("fftn", "ifftn", "rfftn", "irfftn")),
    *(
        OpSpec(
            name=name,
            targets=(getattr(torch.fft, name), f"aten::fft_{name}"),
            family="signal",
            signature="input, dim=None",
        )
        for name in ("fftshift", "ifftshift")
    ),
    *(
        OpSpec(
            name=name,
            targets=(getattr(torch.fft, name), f"aten::fft_{name}"),
            family="signal",
            signature="n, d=1.0",
            activations=(),
        )
        for name in ("fftfreq", "rfftfreq")
    ),
    OpSpec(
        name="stft",
        targets=named("stft"),
        family="signal",
        signature="input, n_fft, hop_length=None, win_length=None, window=None, center=True,"
        " pad_mode='reflect', normalized=False, onesided=None, return_complex=None",
    ),
    OpSpec(
        name="istft",
        targets=named("istft"),
        family="signal",
        signature="input, n_fft, hop_length=None, win_length=None, window=None, center=True,"
        " normalized=False, onesided=None, length=None, return_complex=False",
    ),
)
