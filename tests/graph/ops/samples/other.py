"""Samples of reductions, creation, noise, sizes, effects, Fourier transforms and losses."""

from __future__ import annotations

import math
import operator

import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.graph.effects import assign
from sparsebit.graph.functional import ModeConstant
from tests.graph.ops.sampling import Sample, boolean, integer, positive, real, sample

_SHAPE = (2, 4, 3)


def _reduce(*names: str) -> dict[str, tuple[Sample, ...]]:
    """Over the channels."""
    return {name: (sample(getattr(torch, name), real(*_SHAPE), 1),) for name in names}


def _looked_up(*targets: object) -> tuple[Sample, ...]:
    return tuple(Sample(target, (), runs=False) for target in targets if callable(target))


_REDUCTIONS: dict[str, tuple[Sample, ...]] = {
    **_reduce(
        "sum", "mean", "prod", "nansum", "nanmean", "amax", "amin", "argmax", "argmin", "median", "nanmedian"
    ),
    **_reduce(
        "std", "var", "std_mean", "var_mean", "mode", "logsumexp", "cumsum", "cumprod", "cummax", "cummin"
    ),
    **_reduce("logcumsumexp", "sort", "argsort", "count_nonzero"),
    "max": (sample(torch.max, real(*_SHAPE), 1), sample(torch.Tensor.max, real(*_SHAPE))),
    "min": (sample(torch.min, real(*_SHAPE), dim=1),),
    "aminmax": (sample(torch.aminmax, real(*_SHAPE), dim=1),),
    "any": (sample(torch.any, boolean(*_SHAPE), 1),),
    "all": (sample(torch.all, boolean(*_SHAPE), 1),),
    "kthvalue": (sample(torch.kthvalue, real(*_SHAPE), 2, 1),),
    "quantile": (sample(torch.quantile, real(*_SHAPE), 0.5, dim=1),),
    "norm": (
        sample(torch.norm, real(*_SHAPE), 2, 1),
        sample(torch.linalg.vector_norm, real(*_SHAPE), ord=1, dim=1),
        sample(torch.linalg.norm, real(*_SHAPE), dim=1),
    ),
    "diff": (sample(torch.diff, real(*_SHAPE), dim=1),),
    "topk": (sample(torch.topk, real(*_SHAPE), 2, 1),),
    "unique": (sample(torch.unique, integer(*_SHAPE)),),
    "unique_consecutive": (sample(torch.unique_consecutive, torch.tensor([1, 1, 2, 3, 3, 1])),),
    "bincount": (sample(torch.bincount, integer(12)),),
    "histc": (sample(torch.histc, real(*_SHAPE), 5, -1, 1),),
    "searchsorted": (sample(torch.searchsorted, torch.arange(4.0).double(), real(*_SHAPE)),),
    "dist": (sample(torch.dist, real(*_SHAPE), real(*_SHAPE)),),
    "cosine_similarity": (
        sample(F.cosine_similarity, real(*_SHAPE), real(*_SHAPE)),
        sample(nn.CosineSimilarity(), real(*_SHAPE), real(*_SHAPE)),
    ),
    "pairwise_distance": (sample(F.pairwise_distance, real(2, 4), real(2, 4)),),
}

_CREATION: dict[str, tuple[Sample, ...]] = {
    "zeros": (sample(torch.zeros, 2, 3), sample(torch.zeros, (2, 3), dtype=torch.int64)),
    "ones": (sample(torch.ones, (2, 3)),),
    "empty": (sample(torch.empty, (2, 3)),),
    "empty_strided": (sample(torch.empty_strided, (2, 3), (3, 1)),),
    "full": (sample(torch.full, (2, 3), 1.5),),
    "eye": (sample(torch.eye, 3),),
    "arange": (sample(torch.arange, 5), sample(torch.arange, 1, 7, 2)),
    "linspace": (sample(torch.linspace, 0, 1, 5),),
    "logspace": (sample(torch.logspace, 0, 1, 5),),
    "tensor": (sample(torch.tensor, [1.0, 2.0]), sample(torch.scalar_tensor, 1.0)),
    "typed_tensor": (sample(torch.FloatTensor, [1.0, 2.0]), sample(torch.Tensor, [2, 3])),
    "as_tensor": (sample(torch.as_tensor, real(3)), sample(torch.asarray, real(3))),
    "tril_indices": (sample(torch.tril_indices, 3, 3),),
    "triu_indices": (sample(torch.triu_indices, 3, 3),),
    **{
        f"{name}_window": (sample(getattr(torch, f"{name}_window"), 8),)
        for name in ("hann", "hamming", "blackman", "bartlett", "kaiser")
    },
    "zeros_like": (sample(torch.zeros_like, real(*_SHAPE)),),
    "ones_like": (sample(torch.ones_like, real(*_SHAPE)),),
    "empty_like": (sample(torch.empty_like, real(*_SHAPE)),),
    "full_like": (sample(torch.full_like, real(*_SHAPE), 2.0),),
    "new_zeros": (sample(torch.Tensor.new_zeros, real(*_SHAPE), (2, 3)),),
    "new_ones": (sample(torch.Tensor.new_ones, real(*_SHAPE), 2, 3),),
    "new_empty": (sample(torch.Tensor.new_empty, real(*_SHAPE), (2, 3)),),
    "new_full": (sample(torch.Tensor.new_full, real(*_SHAPE), (2, 3), 1.0),),
    "new_tensor": (sample(torch.Tensor.new_tensor, real(*_SHAPE), [1.0, 2.0]),),
}

_NOISE: dict[str, tuple[Sample, ...]] = {
    "rand": (sample(torch.rand, 2, 3),),
    "randn": (sample(torch.randn, (2, 3)),),
    "randint": (sample(torch.randint, 0, 1000, (4,)),),
    "randperm": (sample(torch.randperm, 100),),
    "rand_like": (sample(torch.rand_like, real(*_SHAPE)),),
    "randn_like": (sample(torch.randn_like, real(*_SHAPE)),),
    "randint_like": (sample(torch.randint_like, real(*_SHAPE), 1000),),
    "normal": (sample(torch.normal, real(*_SHAPE), positive(*_SHAPE)),),
    "fill_normal": (sample(torch.Tensor.normal_, real(*_SHAPE)),),
    "bernoulli": (sample(torch.bernoulli, positive(6, 4, 6)),),
    "poisson": (sample(torch.poisson, positive(*_SHAPE) * 9),),
    "multinomial": (sample(torch.multinomial, positive(8, 9), 3),),
    "uniform": (sample(torch.Tensor.uniform_, real(*_SHAPE)),),
    "exponential": (sample(torch.Tensor.exponential_, real(*_SHAPE)),),
    "random": (sample(torch.Tensor.random_, real(*_SHAPE)),),
}

_SIZES: dict[str, tuple[Sample, ...]] = {
    "size": (
        sample(torch.Tensor.size, real(*_SHAPE), 1),
        sample(getattr, real(*_SHAPE), "shape"),
    ),
    "stride": (sample(torch.Tensor.stride, real(*_SHAPE), 0),),
    "storage_offset": (sample(torch.Tensor.storage_offset, real(*_SHAPE)),),
    "numel": (sample(torch.numel, real(*_SHAPE)),),
    "dim": (sample(torch.Tensor.dim, real(*_SHAPE)), sample(getattr, real(*_SHAPE), "ndim")),
    "dtype": (sample(getattr, real(*_SHAPE), "dtype"),),
    "device": (sample(getattr, real(*_SHAPE), "device"),),
    "is_floating_point": (sample(torch.is_floating_point, real(*_SHAPE)),),
    "is_complex": (sample(torch.is_complex, real(*_SHAPE)),),
    "is_contiguous": (sample(torch.Tensor.is_contiguous, real(*_SHAPE)),),
    "is_nonzero": (sample(torch.is_nonzero, real(1)),),
    "tolist": (sample(torch.Tensor.tolist, real(*_SHAPE)),),
    "item": (sample(torch.Tensor.item, real(1)),),
    "result_type": (sample(torch.result_type, real(*_SHAPE), 1),),
    "getattr": (sample(getattr, real(*_SHAPE), "is_leaf"),),
    "len": (sample(len, real(*_SHAPE)),),
    "int": (sample(int, 2.5),),
    "float": (sample(float, 2),),
    "bool": (sample(bool, 2),),
    "not": (sample(operator.not_, True),),
    "builtin_max": (sample(max, 2, 3),),
    "builtin_min": (sample(min, 2, 3),),
    "builtin_sum": (sample(sum, [2, 3]),),
    "math": (sample(math.sqrt, 2.0), sample(math.floor, 2.5)),
    "sequence": (sample(tuple, [2, 3]), sample(slice, 1, 2)),
    "test": (sample(operator.is_, 1, None),),
    "type_info": (sample(torch.finfo, torch.float32),),
    "global_state": (sample(torch.is_grad_enabled),),
    "mode_constant": (sample(ModeConstant(0.1, 0.0)),),
}

_EFFECTS: dict[str, tuple[Sample, ...]] = {
    "assign": (sample(assign, real(3), real(3)),),
    "setitem": (sample(operator.setitem, real(3, 4), (slice(None), 0), real(3)),),
    "set_grad_enabled": _looked_up(torch._C._set_grad_enabled, torch.set_grad_enabled),
    "requires_grad": (sample(torch.Tensor.requires_grad_, real(3)),),
    "enter_inference_mode": _looked_up(torch.autograd.grad_mode._enter_inference_mode),
    "exit_inference_mode": _looked_up(torch.autograd.grad_mode._exit_inference_mode),
    "enter_autocast": _looked_up(torch.amp.autocast_mode._enter_autocast),
    "exit_autocast": _looked_up(torch.amp.autocast_mode._exit_autocast),
    "assert": (sample(torch._assert, True, "never"),),
}

_SIGNAL: dict[str, tuple[Sample, ...]] = {
    **{
        name: (sample(getattr(torch.fft, name), real(2, 8, 4), dim=1),)
        for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")
    },
    **{
        name: (sample(getattr(torch.fft, name), real(2, 4, 8)),)
        for name in ("fft2", "ifft2", "rfft2", "irfft2", "fftn", "ifftn", "rfftn", "irfftn")
    },
    "fftfreq": (sample(torch.fft.fftfreq, 8),),
    "rfftfreq": (sample(torch.fft.rfftfreq, 8),),
    "stft": (sample(torch.stft, real(2, 64), 16, window=torch.ones(16).double(), return_complex=True),),
    "istft": (
        sample(
            torch.istft,
            torch.stft(real(2, 64), 16, window=torch.ones(16).double(), return_complex=True),
            16,
            window=torch.ones(16).double(),
        ),
    ),
}

_CLASSES = torch.tensor([1, 0])
_LOSSES: dict[str, tuple[Sample, ...]] = {
    "cross_entropy": (
        sample(F.cross_entropy, real(2, 4), _CLASSES),
        sample(nn.CrossEntropyLoss(), real(2, 4), _CLASSES),
    ),
    "nll_loss": (sample(F.nll_loss, real(2, 4), _CLASSES),),
    "mse_loss": (sample(nn.MSELoss(), real(2, 4), real(2, 4)),),
    "l1_loss": (sample(F.l1_loss, real(2, 4), real(2, 4)),),
    "smooth_l1_loss": (sample(F.smooth_l1_loss, real(2, 4), real(2, 4)),),
    "huber_loss": (sample(F.huber_loss, real(2, 4), real(2, 4)),),
    "binary_cross_entropy": (sample(F.binary_cross_entropy, positive(2, 4), positive(2, 4)),),
    "binary_cross_entropy_with_logits": (
        sample(F.binary_cross_entropy_with_logits, real(2, 4), positive(2, 4)),
    ),
    "kl_div": (sample(F.kl_div, real(2, 4), positive(2, 4), reduction="batchmean"),),
    "ctc_loss": (
        sample(
            F.ctc_loss,
            *(real(9, 2, 5).log_softmax(-1), integer(2, 3, high=5)),
            *(torch.tensor([9, 9]), torch.tensor([3, 2])),
        ),
    ),
}

SAMPLES: dict[str, tuple[Sample, ...]] = {
    **_REDUCTIONS,
    **_CREATION,
    **_NOISE,
    **_SIZES,
    **_EFFECTS,
    **_SIGNAL,
    **_LOSSES,
}
