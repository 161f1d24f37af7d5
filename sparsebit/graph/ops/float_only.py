"""Operators that stay in float; their rows say little more than that they are known.

Losses, for models that compute theirs inside forward; decompositions and solvers; Fourier transforms, which count no
MACs: how many there are depends on the algorithm.
"""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import family, named, present

_linear = family("linalg")
_signal = family("signal")
_loss = family("loss", aliases={"log_probs": "input"})
_PLAIN = "input, target, reduction='mean'"
_CLASSES = "input, target, weight=None, ignore_index=-100, reduction='mean'"

_LOSSES = (
    _loss(
        "cross_entropy", f"{_CLASSES}, label_smoothing=0.0", nn.CrossEntropyLoss, "aten::cross_entropy_loss"
    ),
    _loss("nll_loss", _CLASSES, nn.NLLLoss, *(f"aten::nll_loss{kind}" for kind in ("_nd", "_forward", "2d"))),
    _loss("mse_loss", _PLAIN, nn.MSELoss),
    _loss("l1_loss", _PLAIN, nn.L1Loss),
    _loss("smooth_l1_loss", f"{_PLAIN}, beta=1.0", nn.SmoothL1Loss),
    _loss("huber_loss", f"{_PLAIN}, delta=1.0", nn.HuberLoss),
    _loss("binary_cross_entropy", "input, target, weight=None, reduction='mean'", nn.BCELoss),
    _loss(
        "binary_cross_entropy_with_logits",
        "input, target, weight=None, reduction='mean', pos_weight=None",
        nn.BCEWithLogitsLoss,
    ),
    _loss("kl_div", f"{_PLAIN}, log_target=False", nn.KLDivLoss),
    _loss(
        "ctc_loss",
        "input, targets, input_lengths, target_lengths, blank=0, reduction='mean', zero_infinity=False",
        nn.CTCLoss,
    ),
)

_TWO = ("input", "other")


def _linalg(name: str, signature: str = "input", *older: str, **fields: object) -> OpSpec:
    """A function of torch.linalg, and its older top-level spellings (if they mean the same)."""
    targets = (*present(torch.linalg, name), f"aten::linalg_{name}", *named(*older))
    return _linear(f"linalg_{name}", signature, only=targets, aliases={"A": "input", "B": "other"}, **fields)


_LINEAR_ALGEBRA = (
    _linalg("inv", "input", "inverse"),
    _linalg("pinv", "input, rcond=1e-15, hermitian=False", "pinverse"),
    _linalg("det", "input", "det"),
    _linalg("slogdet", "input", "slogdet"),
    _linalg("cholesky", "input, upper=False", "cholesky"),
    _linalg("qr", "input, mode='reduced'"),
    _linalg("svd", "input, full_matrices=True"),
    _linalg("eigh", "input, UPLO='L'"),
    _linalg("solve", "input, other, left=True", activations=_TWO),
    _linalg("solve_triangular", "input, other, upper=True", activations=_TWO),
    _linalg("matrix_exp", "input", "matrix_exp"),
    _linear("cross", "input, other, dim=-1", torch.linalg.cross, "aten::linalg_cross", activations=_TWO),
    _linear("trace"),
)

_STFT = "input, n_fft, hop_length=None, win_length=None, window=None, center=True"


def _fft(name: str, signature: str, **fields: object) -> OpSpec:
    targets = (*present(torch.fft, name), *present(torch, f"fft_{name}"), f"aten::fft_{name}")
    return _signal(name, signature, only=targets, **fields)


_SIGNAL = (
    *(
        _fft(name, "input, n=None, dim=-1, norm=None", channels="along_dim")
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    ),
    *(_fft(name, "input, s=None, dim=(-2, -1), norm=None") for name in ("fft2", "ifft2", "rfft2", "irfft2")),
    *(_fft(name, "input, s=None, dim=None, norm=None") for name in ("fftn", "ifftn", "rfftn", "irfftn")),
    *(_fft(name, "input, dim=None") for name in ("fftshift", "ifftshift")),
    *(_fft(name, "n, d=1.0", activations=()) for name in ("fftfreq", "rfftfreq")),
    _signal("stft", f"{_STFT}, pad_mode='reflect', normalized=False, onesided=None, return_complex=None"),
    _signal("istft", f"{_STFT}, normalized=False, onesided=None, length=None, return_complex=False"),
)

OPS = (*_SIGNAL, *_LINEAR_ALGEBRA, *_LOSSES)
