"""Normalisations: the argument orders of ``F.x`` and ``torch.x`` differ."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named, present

_RUNNING = "input, running_mean=None, running_var=None, weight=None, bias=None"

OPS = (
    OpSpec(
        name="batch_norm",
        targets=named(
            *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm"),
            *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
            *("aten::_native_batch_norm_legit", "aten::_batch_norm_impl_index"),
            *("aten::_native_batch_norm_legit_no_training", "aten::_batch_norm_no_update"),
        ),
        family="norm",
        signature=f"{_RUNNING}, training=False, momentum=0.1, eps=1e-5",
        orders=dict.fromkeys(
            (torch.batch_norm, torch.native_batch_norm),
            "input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled",
        ),
        weight="weight",
        bias="bias",
        channel_axis=1,
        channels="norm_per_channel",
    ),
    OpSpec(
        name="instance_norm",
        targets=named("instance_norm", nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
        family="norm",
        signature=f"{_RUNNING}, use_input_stats=True, momentum=0.1, eps=1e-5",
        orders={
            torch.instance_norm: "input, weight, bias, running_mean, running_var, use_input_stats, momentum,"
            " eps, cudnn_enabled"
        },
        weight="weight",
        bias="bias",
        channel_axis=1,
        channels="norm_per_channel",
    ),
    OpSpec(
        name="layer_norm",
        targets=named("layer_norm", "native_layer_norm", nn.LayerNorm),
        family="norm",
        signature="input, normalized_shape, weight=None, bias=None, eps=1e-5",
        weight="weight",
        bias="bias",
        channel_axis=-1,
        channels="norm_over_channels",
        sizes="norm",
    ),
    OpSpec(
        name="rms_norm",
        targets=named("rms_norm", nn.RMSNorm, "aten::_fused_rms_norm"),
        family="norm",
        signature="input, normalized_shape, weight=None, eps=None",
        weight="weight",
        channel_axis=-1,
        channels="norm_over_channels",
        sizes="norm",
    ),
    OpSpec(
        name="group_norm",
        targets=named("group_norm", nn.GroupNorm, "aten::native_group_norm"),
        family="norm",
        signature="input, num_groups, weight=None, bias=None, eps=1e-5",
        aliases={"group": "num_groups"},
        weight="weight",
        bias="bias",
        channel_axis=1,
        channels="group_norm",
        sizes="groups",
    ),
    OpSpec(
        name="local_response_norm",
        targets=named("local_response_norm", nn.LocalResponseNorm),
        family="norm",
        signature="input, size, alpha=1e-4, beta=0.75, k=1.0",
    ),
    OpSpec(
        name="normalize",
        targets=named("normalize"),
        family="norm",
        signature="input, p=2.0, dim=1, eps=1e-12",
        channels="normalize",
    ),
    OpSpec(
        name="renorm",
        targets=named("renorm"),
        family="norm",
        signature="input, p, dim, maxnorm",
    ),
    OpSpec(
        name="weight_norm",
        targets=(
            *(*present(torch, "_weight_norm"), "aten::_weight_norm", "aten::_weight_norm_interface"),
            "torch.nn.utils.parametrizations._WeightNorm",
        ),
        family="norm",
        signature="input, g, dim=0",
        aliases={"v": "input", "weight_v": "input", "weight_g": "g"},
        channels="weight_norm",
    ),
)
