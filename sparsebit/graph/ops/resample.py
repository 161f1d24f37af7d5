"""Change of resolution inside each channel."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.ops.spellings import family

_row = family("resample")
_SMOOTH = {"linear1d": "linear", "bilinear2d": "bilinear", "trilinear3d": "trilinear", "bicubic2d": "bicubic"}
# aten operator -> the arguments of ``F.interpolate`` that it fixes
_UPSAMPLES: dict[str, dict[str, object]] = {
    **{f"aten::upsample_nearest{dims}d": {"mode": "nearest"} for dims in (1, 2, 3)},
    **{f"aten::_upsample_nearest_exact{dims}d": {"mode": "nearest-exact"} for dims in (1, 2, 3)},
    **{f"aten::upsample_{name}": {"mode": mode} for name, mode in _SMOOTH.items()},
    **{f"aten::_upsample_{mode}2d_aa": {"mode": mode, "antialias": True} for mode in ("bilinear", "bicubic")},
}

OPS = (
    _row(
        "interpolate",
        "input, size=None, scale_factor=None, mode='nearest', align_corners=None,"
        " recompute_scale_factor=None, antialias=False",
        *("upsample", "upsample_nearest", "upsample_bilinear"),
        *(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, *_UPSAMPLES),
        aliases={"output_size": "size", "scale_factors": "scale_factor"},
        implied={
            **_UPSAMPLES,
            torch.nn.functional.upsample_bilinear: {"mode": "bilinear", "align_corners": True},
        },
        channels="per_channel",
        moves=lambda call: str(call.arguments.get("mode", "nearest")).startswith("nearest"),
        keeps_zero=True,
        homogeneous=True,
    ),
    _row(
        "grid_sample",
        "input, grid, mode='bilinear', padding_mode='zeros', align_corners=None",
        *("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
        aliases={"interpolation_mode": "mode"},
        activations=("input", "grid"),
        channels="grid_sample",
    ),
    _row(
        "affine_grid",
        "input, size, align_corners=None",
        "affine_grid_generator",
        aliases={"theta": "input"},
    ),
)
