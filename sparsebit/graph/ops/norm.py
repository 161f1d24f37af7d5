"""Normalisations: the argument orders of ``F.x`` and ``torch.x`` differ."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.ops.spellings import family, present

_row = family("norm")
_affine = family("norm", weight="weight", bias="bias", channel_axis=1)
_RUNNING = "input, running_mean=None, running_var=None, weight=None, bias=None"
_TORCH = "input, weight, bias, running_mean, running_var"

OPS = (
    _affine(
        "batch_norm",
        f"{_RUNNING}, training=False, momentum=0.1, eps=1e-5",
        *("native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
        *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
        *("aten::_native_batch_norm_legit", "aten::_batch_norm_impl_index"),
        *("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update"),
        orders=dict.fromkeys(
            (torch.batch_norm, torch.native_batch_norm), f"{_TORCH}, training, momentum, eps, cudnn_enabled"
        ),
        channels="norm_per_channel",
    ),
    _affine(
        "instance_norm",
        f"{_RUNNING}, use_input_stats=True, momentum=0.1, eps=1e-5",
        *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        orders={torch.instance_norm: f"{_TORCH}, use_input_stats, momentum, eps, cudnn_enabled"},
        channels="norm_per_channel",
    ),
    _affine(
        "layer_norm",
        "input, normalized_shape, weight=None, bias=None, eps=1e-5",
        *("native_layer_norm", nn.LayerNorm),
        channel_axis=-1,
        channels="norm_over_channels",
        sizes="norm",
    ),
    _affine(
        "rms_norm",
        "input, normalized_shape, weight=None, eps=None",
        *(nn.RMSNorm, "aten::_fused_rms_norm"),
        bias=None,
        channel_axis=-1,
        channels="norm_over_channels",
        sizes="norm",
    ),
    _affine(
        "group_norm",
        "input, num_groups, weight=None, bias=None, eps=1e-5",
        *(nn.GroupNorm, "aten::native_group_norm"),
        aliases={"group": "num_groups"},
        channels="group_norm",
        sizes="groups",
    ),
    _row("local_response_norm", "input, size, alpha=1e-4, beta=0.75, k=1.0", nn.LocalResponseNorm),
    _row("normalize", "input, p=2.0, dim=1, eps=1e-12", channels="normalize"),
    _row("renorm", "input, p, dim, maxnorm"),
    _row(
        "weight_norm",
        "input, g, dim=0",
        only=(
            *(*present(torch, "_weight_norm"), "aten::_weight_norm", "aten::_weight_norm_interface"),
            "torch.nn.utils.parametrizations._WeightNorm",
        ),
        aliases={"v": "input", "weight_v": "input", "weight_g": "g"},
        channels="weight_norm",
    ),
)
