"""Fourier transforms. They count no MACs: how many there are depends on the algorithm."""

from __future__ import annotations

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import family, present

_row = family("signal")
_STFT = "input, n_fft, hop_length=None, win_length=None, window=None, center=True"


def _fft(name: str, signature: str, **fields: object) -> OpSpec:
    targets = (*present(torch.fft, name), *present(torch, f"fft_{name}"), f"aten::fft_{name}")
    return _row(name, signature, only=targets, **fields)


OPS = (
    *(
        _fft(name, "input, n=None, dim=-1, norm=None", channels="along_dim")
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    ),
    *(_fft(name, "input, s=None, dim=(-2, -1), norm=None") for name in ("fft2", "ifft2", "rfft2", "irfft2")),
    *(_fft(name, "input, s=None, dim=None, norm=None") for name in ("fftn", "ifftn", "rfftn", "irfftn")),
    *(_fft(name, "input, dim=None") for name in ("fftshift", "ifftshift")),
    *(_fft(name, "n, d=1.0", activations=()) for name in ("fftfreq", "rfftfreq")),
    _row("stft", f"{_STFT}, pad_mode='reflect', normalized=False, onesided=None, return_complex=None"),
    _row("istft", f"{_STFT}, normalized=False, onesided=None, length=None, return_complex=False"),
)
