"""Samples of what multiplies, normalises or pools: conv, linear, matmul, attention, rnn, norm, linalg."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import rnn

from tests.graph.ops.sampling import Sample, integer, parameter, positive, real, sample

_SIZES = {1: (9,), 2: (7, 8), 3: (5, 6, 4)}


def _conv(dims: int) -> dict[str, tuple[Sample, ...]]:
    image, kernel = real(2, 4, *_SIZES[dims]), (3,) * dims
    plain, transposed = getattr(F, f"conv{dims}d"), getattr(F, f"conv_transpose{dims}d")
    layer, transposed_layer = getattr(nn, f"Conv{dims}d"), getattr(nn, f"ConvTranspose{dims}d")
    return {
        f"conv{dims}d": (
            sample(plain, image, parameter(6, 4, *kernel), parameter(6), stride=2, padding=1),
            sample(layer(4, 6, 3, padding="same", bias=False), image),
            sample(layer(4, 6, 3, padding=1, padding_mode="circular"), image),
            sample(plain, real(4, *_SIZES[dims]), parameter(6, 4, *kernel)),
            sample(layer(4, 8, 3, groups=2, dilation=2, padding=2), image),
        ),
        f"conv_transpose{dims}d": (
            sample(transposed, image, parameter(4, 6, *kernel), parameter(6), 2, 1),
            sample(transposed_layer(4, 6, 3, stride=2, output_padding=1), image),
            sample(transposed_layer(4, 6, 3, groups=2), image),
        ),
    }


def _pool(dims: int) -> dict[str, tuple[Sample, ...]]:
    image = real(2, 4, *(8,) * dims)

    def both(name: str, layer: str, *args: object) -> tuple[Sample, ...]:
        return (
            sample(getattr(F, f"{name}{dims}d"), image, *args),
            sample(getattr(nn, f"{layer}{dims}d")(*args), image),
        )

    _, indices = getattr(F, f"max_pool{dims}d")(image, 2, return_indices=True)
    return {
        f"max_pool{dims}d": both("max_pool", "MaxPool", 3, 2, 1),
        f"avg_pool{dims}d": both("avg_pool", "AvgPool", 2),
        f"adaptive_avg_pool{dims}d": both("adaptive_avg_pool", "AdaptiveAvgPool", 3),
        f"adaptive_max_pool{dims}d": both("adaptive_max_pool", "AdaptiveMaxPool", 3),
        f"lp_pool{dims}d": both("lp_pool", "LPPool", 2, 2),
        f"max_unpool{dims}d": (
            sample(getattr(F, f"max_unpool{dims}d"), real(*indices.shape), indices, 2),
            sample(getattr(nn, f"MaxUnpool{dims}d")(2), real(*indices.shape), indices),
        ),
    }


def _recurrent(layer: type[nn.Module], **settings: object) -> tuple[Sample, ...]:
    packed = rnn.pack_padded_sequence(real(5, 3, 4), torch.tensor([5, 3, 2]))
    return (
        sample(layer(4, 6), real(5, 3, 4)),
        sample(layer(4, 6, num_layers=2, bidirectional=True, dropout=0.5, **settings), real(5, 3, 4)),
        sample(layer(4, 6, batch_first=True, bias=False), real(3, 5, 4)),
        sample(layer(4, 6), real(5, 4)),
        sample(layer(4, 6), packed),
    )


def _functional_recurrent() -> Sample:
    weights = [parameter(18, 4), parameter(18, 6), parameter(18), parameter(18)]
    return sample(torch.gru, real(5, 3, 4), real(1, 3, 6), weights, True, 1, 0.0, False, False, False)


def _spd(size: int) -> torch.Tensor:
    root = real(size, size)
    return root @ root.T + torch.eye(size, dtype=torch.float64)


_SQUARE, _SPD = real(4, 4), _spd(4)

_CONTRACTIONS: dict[str, tuple[Sample, ...]] = {
    "conv_tbc": (sample(torch.conv_tbc, real(7, 2, 4), parameter(3, 4, 6), parameter(6), 1),),
    "linear": (
        sample(nn.Linear(4, 6), real(2, 3, 4)),
        sample(F.linear, real(5, 4), parameter(6, 4), bias=parameter(6)),
        sample(F.linear, real(4), parameter(6, 4)),
    ),
    "bilinear": (
        sample(nn.Bilinear(4, 3, 6), real(5, 4), real(5, 3)),
        sample(F.bilinear, real(2, 5, 4), real(2, 5, 3), parameter(6, 4, 3)),
    ),
    "matmul": (
        sample(torch.matmul, real(2, 3, 5, 4), real(2, 3, 4, 6)),
        sample(torch.matmul, real(2, 3, 4), parameter(4, 6)),
        sample(torch.mm, real(5, 4), parameter(4, 6)),
        sample(torch.bmm, real(3, 5, 4), real(3, 4, 6)),
        sample(torch.mv, real(5, 4), real(4)),
        sample(torch.dot, real(4), real(4)),
        sample(torch.Tensor.matmul, real(5, 4), real(4, 6)),
        sample(torch.matmul, real(4), real(3, 4, 6)),
        sample(torch.matmul, real(1, 5, 4), real(3, 4, 6)),
    ),
    "addmm": (
        sample(torch.addmm, parameter(6), real(5, 4), parameter(4, 6)),
        sample(torch.addmm, real(5, 6), real(5, 4), real(4, 6), beta=2),
    ),
    "addmv": (sample(torch.addmv, real(5), real(5, 4), real(4)),),
    "baddbmm": (
        sample(torch.baddbmm, real(3, 5, 6), real(3, 5, 4), parameter(3, 4, 6)),
        sample(torch.baddbmm, real(3, 5, 6), real(3, 5, 4), real(3, 4, 6)),
    ),
    "addbmm": (sample(torch.addbmm, real(5, 6), real(3, 5, 4), real(3, 4, 6)),),
    "inner": (sample(torch.inner, real(5, 4), real(6, 4)),),
    "vecdot": (sample(torch.linalg.vecdot, real(2, 5, 4), real(5, 4)),),
    "einsum": (
        sample(torch.einsum, "bik,bkj->bij", real(2, 5, 4), real(2, 4, 6)),
        sample(torch.einsum, "...ik, kj", real(2, 5, 4), real(4, 6)),
        sample(torch.einsum, "bhid,bhjd->bhij", [real(2, 3, 5, 4), real(2, 3, 6, 4)]),
        sample(torch.einsum, "bi,bi->bi", real(3, 4), real(3, 4)),
        sample(torch.einsum, "ij->ji", real(3, 4)),
        sample(torch.einsum, "i,j->ij", real(3), real(4)),
    ),
    "tensordot": (
        sample(torch.tensordot, real(2, 3, 4), real(3, 4, 5), 2),
        sample(torch.tensordot, real(2, 3, 4), real(4, 5, 3), dims=([1, 2], [2, 0])),
    ),
    "multi_dot": (
        sample(torch.linalg.multi_dot, [real(10, 2), real(2, 30), real(30, 3)]),
        sample(torch.linalg.multi_dot, [real(2, 9), real(9, 4), real(4, 3), real(3, 8)]),
    ),
    "outer": (sample(torch.outer, real(3), real(4)),),
    "kron": (sample(torch.kron, real(2, 3), real(3, 2)),),
    "cdist": (sample(torch.cdist, real(2, 5, 4), real(2, 6, 4)),),
    "scaled_dot_product_attention": (
        sample(F.scaled_dot_product_attention, real(2, 3, 5, 4), real(2, 3, 6, 4), real(2, 3, 6, 7)),
        sample(
            F.scaled_dot_product_attention,
            *(real(2, 4, 5, 8), real(2, 2, 5, 8), real(2, 2, 5, 8)),
            enable_gqa=True,
            is_causal=True,
        ),
        sample(F.scaled_dot_product_attention, *(real(2, 3, 5, 4) for _ in range(3)), dropout_p=0.5),
    ),
    "multi_head_attention": (
        sample(nn.MultiheadAttention(8, 2, dropout=0.5), real(5, 3, 8), real(6, 3, 8), real(6, 3, 8)),
        sample(
            nn.MultiheadAttention(8, 2, batch_first=True, kdim=4, vdim=6),
            real(3, 5, 8),
            real(3, 7, 4),
            real(3, 7, 6),
        ),
    ),
    "rnn": _recurrent(nn.RNN),
    "lstm": _recurrent(nn.LSTM, proj_size=3),
    "gru": (*_recurrent(nn.GRU), _functional_recurrent()),
    "rnn_cell": (sample(nn.RNNCell(4, 6), real(3, 4)), sample(nn.RNNCell(4, 6), real(3, 4), real(3, 6))),
    "lstm_cell": (
        sample(nn.LSTMCell(4, 6), real(3, 4)),
        sample(torch.lstm_cell, real(3, 4), [real(3, 6), real(3, 6)], parameter(24, 4), parameter(24, 6)),
    ),
    "gru_cell": (sample(nn.GRUCell(4, 6), real(3, 4)),),
    "embedding": (
        sample(nn.Embedding(7, 4, padding_idx=0), integer(2, 5)),
        sample(F.embedding, integer(2, 5), parameter(7, 4)),
        sample(torch.embedding, parameter(7, 4), integer(2, 5)),
    ),
    "embedding_bag": (
        sample(nn.EmbeddingBag(7, 4), integer(2, 5)),
        sample(F.embedding_bag, integer(6), parameter(7, 4), torch.tensor([0, 2])),
    ),
    "one_hot": (sample(F.one_hot, integer(2, 5), 7),),
}

# grouped_mm came after torch 2.9, and its CPU kernel wants bfloat16
if hasattr(F, "grouped_mm"):
    _CONTRACTIONS["grouped_mm"] = (
        sample(
            F.grouped_mm,
            *(real(8, 16).bfloat16(), nn.Parameter(real(2, 16, 24).bfloat16())),
            offs=torch.tensor([3, 8], dtype=torch.int32),
        ),
    )

_NORMS: dict[str, tuple[Sample, ...]] = {
    "batch_norm": (
        sample(nn.BatchNorm2d(4), real(2, 4, 5, 5)),
        sample(nn.BatchNorm1d(4).eval(), real(3, 4)),
        sample(F.batch_norm, real(2, 4, 5), real(4), positive(4), parameter(4), parameter(4)),
        sample(
            torch.batch_norm,
            real(2, 4, 5),
            parameter(4),
            parameter(4),
            real(4),
            positive(4),
            False,
            0.1,
            1e-5,
            False,
        ),
    ),
    "instance_norm": (
        sample(nn.InstanceNorm2d(4, affine=True), real(2, 4, 5, 5)),
        sample(F.instance_norm, real(2, 4, 5), weight=parameter(4)),
    ),
    "layer_norm": (
        sample(nn.LayerNorm(4), real(2, 5, 4)),
        sample(F.layer_norm, real(2, 4, 5), (4, 5), parameter(4, 5), parameter(4, 5)),
    ),
    "rms_norm": (
        sample(nn.RMSNorm((4, 5)), real(2, 4, 5)),
        sample(F.rms_norm, real(2, 4), (4,), parameter(4)),
    ),
    "group_norm": (
        sample(nn.GroupNorm(2, 4), real(2, 4, 5, 5)),
        sample(F.group_norm, real(2, 4, 5), 2, parameter(4), parameter(4)),
    ),
    "local_response_norm": (sample(nn.LocalResponseNorm(3), real(2, 4, 5, 5)),),
    "normalize": (sample(F.normalize, real(2, 4, 5)),),
    "renorm": (sample(torch.renorm, real(2, 4, 5), 2, 0, 0.5),),
    "weight_norm": (sample(torch._weight_norm, parameter(6, 4, 3), parameter(6, 1, 1), 0),),
}

_RESAMPLING: dict[str, tuple[Sample, ...]] = {
    "fractional_max_pool2d": (sample(F.fractional_max_pool2d, real(2, 4, 17, 17), 2, 7),),
    "fractional_max_pool3d": (sample(nn.FractionalMaxPool3d(2, 5), real(2, 4, 13, 13, 13)),),
    "interpolate": (
        sample(F.interpolate, real(2, 4, 5, 5), scale_factor=2.0, mode="bilinear"),
        sample(F.interpolate, real(2, 4, 6), 9),
        sample(nn.Upsample(scale_factor=2), real(2, 4, 5, 5)),
        sample(nn.UpsamplingBilinear2d(size=(7, 7)), real(2, 4, 5, 5)),
    ),
    "grid_sample": (sample(F.grid_sample, real(2, 4, 5, 5), positive(2, 6, 6, 2), align_corners=False),),
    "affine_grid": (sample(F.affine_grid, real(2, 2, 3), [2, 4, 5, 5], align_corners=False),),
}

_LINALG: dict[str, tuple[Sample, ...]] = {
    "linalg_inv": (sample(torch.linalg.inv, _SPD),),
    "linalg_pinv": (sample(torch.linalg.pinv, real(5, 4)),),
    "linalg_det": (sample(torch.linalg.det, _SQUARE),),
    "linalg_slogdet": (sample(torch.linalg.slogdet, _SQUARE),),
    "linalg_cholesky": (sample(torch.linalg.cholesky, _SPD),),
    "linalg_qr": (sample(torch.linalg.qr, real(5, 4)),),
    "linalg_svd": (sample(torch.linalg.svd, real(5, 4)),),
    "linalg_eigh": (sample(torch.linalg.eigh, _SPD),),
    "linalg_solve": (sample(torch.linalg.solve, _SPD, real(4, 2)),),
    "linalg_solve_triangular": (sample(torch.linalg.solve_triangular, _SPD.tril(), real(4, 2), upper=False),),
    "linalg_matrix_exp": (sample(torch.linalg.matrix_exp, _SQUARE),),
    "cross": (
        sample(torch.linalg.cross, real(2, 3), real(2, 3)),
        sample(torch.cross, real(2, 3), real(2, 3), dim=1),
    ),
    "trace": (sample(torch.trace, _SQUARE),),
}

SAMPLES: dict[str, tuple[Sample, ...]] = {
    **{name: cases for dims in (1, 2, 3) for name, cases in {**_conv(dims), **_pool(dims)}.items()},
    **_CONTRACTIONS,
    **_NORMS,
    **_RESAMPLING,
    **_LINALG,
}
