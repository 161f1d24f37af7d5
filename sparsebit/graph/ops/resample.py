"""Change of resolution inside each channel."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named

_UPSAMPLES = {
    "aten::upsample_nearest1d": "nearest",
    "aten::upsample_nearest2d": "nearest",
    "aten::upsample_nearest3d": "nearest",
    "aten::_upsample_nearest_exact1d": "nearest-exact",
    "aten::_upsample_nearest_exact2d": "nearest-exact",
    "aten::_upsample_nearest_exact3d": "nearest-exact",
    "aten::upsample_linear1d": "linear",
    "aten::upsample_bilinear2d": "bilinear",
    "aten::_upsample_bilinear2d_aa": "bilinear",
    "aten::upsample_trilinear3d": "trilinear",
    "aten::upsample_bicubic2d": "bicubic",
    "aten::_upsample_bicubic2d_aa": "bicubic",
}

OPS = (
    OpSpec(
        name="interpolate",
        targets=named(
            *("interpolate", "upsample", "upsample_nearest", "upsample_bilinear"),
            *(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, *_UPSAMPLES),
        ),
        family="resample",
        signature="input, size=None, scale_factor=None, mode='nearest', align_corners=None,"
        " recompute_scale_factor=None, antialias=False",
        aliases={"output_size": "size", "scale_factors": "scale_factor"},
        implied={
            **{target: {"mode": mode} for target, mode in _UPSAMPLES.items()},
            "aten::_upsample_bilinear2d_aa": {"mode": "bilinear", "antialias": True},
            "aten::_upsample_bicubic2d_aa": {"mode": "bicubic", "antialias": True},
            torch.nn.functional.upsample_bilinear: {"mode": "bilinear", "align_corners": True},
        },
        channels="per_channel",
        moves=lambda call: str(call.arguments.get("mode", "nearest")).startswith("nearest"),
        keeps_zero=True,
        homogeneous=True,
    ),
    OpSpec(
        name="grid_sample",
        targets=named("grid_sample", "grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
        family="resample",
        signature="input, grid, mode='bilinear', padding_mode='zeros', align_corners=None",
        aliases={"interpolation_mode": "mode"},
        activations=("input", "grid"),
        channels="grid_sample",
    ),
    OpSpec(
        name="affine_grid",
        targets=named("affine_grid", "affine_grid_generator"),
        family="resample",
        signature="input, size, align_corners=None",
        aliases={"theta": "input"},
    ),
)
