"""Pooling, where windows slide inside each channel, and other changes of resolution."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import family, named, present

_row = family("pool")
_resample = family("resample")
_SMOOTH = {"linear1d": "linear", "bilinear2d": "bilinear", "trilinear3d": "trilinear", "bicubic2d": "bicubic"}
# aten operator -> the arguments of ``F.interpolate`` that it fixes
_UPSAMPLES: dict[str, dict[str, object]] = {
    **{f"aten::upsample_nearest{dims}d": {"mode": "nearest"} for dims in (1, 2, 3)},
    **{f"aten::_upsample_nearest_exact{dims}d": {"mode": "nearest-exact"} for dims in (1, 2, 3)},
    **{f"aten::upsample_{name}": {"mode": mode} for name, mode in _SMOOTH.items()},
    **{f"aten::_upsample_{mode}2d_aa": {"mode": mode, "antialias": True} for mode in ("bilinear", "bicubic")},
}
_INDICES = "return_indices=False"


def _stride_is_kernel(arguments: dict[str, object]) -> None:
    """An absent stride (None from ``F``, [] from aten) means the kernel size."""
    if not arguments.get("stride"):
        arguments["stride"] = arguments["kernel_size"]


def _pool(
    name: str, dims: int, module: str, signature: str, *targets: object, random: bool = False
) -> OpSpec:
    with_indices = named(f"{name}{dims}d_with_indices")
    return _row(
        f"{name}{dims}d",
        signature,
        *present(nn, f"{module}{dims}d"),
        *targets,
        *(with_indices if _INDICES in signature else ()),
        implied={target: {"return_indices": True} for target in with_indices},
        tidy=_stride_is_kernel if "stride" in signature else None,
        spatial=dims,
        channels="max_unpool" if "unpool" in name else "per_channel",
        moves="max_" in name,  # a maximum over a window is one of the numbers in it
        keeps_zero="lp_" not in name,
        homogeneous="avg_" in name,
        random=random,
    )


def _pools(dims: int) -> tuple[OpSpec, ...]:
    window = "input, kernel_size, stride=None, padding=0"
    divisor = "" if dims == 1 else ", divisor_override=None"
    return (
        _pool("max_pool", dims, "MaxPool", f"{window}, dilation=1, ceil_mode=False, {_INDICES}"),
        _pool("avg_pool", dims, "AvgPool", f"{window}, ceil_mode=False, count_include_pad=True{divisor}"),
        _pool(
            *("adaptive_avg_pool", dims, "AdaptiveAvgPool", "input, output_size"),
            f"aten::_adaptive_avg_pool{dims}d",
        ),
        _pool("adaptive_max_pool", dims, "AdaptiveMaxPool", f"input, output_size, {_INDICES}"),
        _pool("lp_pool", dims, "LPPool", "input, norm_type, kernel_size, stride=None, ceil_mode=False"),
        _pool(
            *("max_unpool", dims, "MaxUnpool"),
            "input, indices, kernel_size, stride=None, padding=0, output_size=None",
        ),
    )


def _fractional(dims: int) -> OpSpec:
    signature = f"input, kernel_size, output_size=None, output_ratio=None, {_INDICES}"
    return _pool("fractional_max_pool", dims, "FractionalMaxPool", signature, random=True)


_RESAMPLING = (
    _resample(
        "interpolate",
        "input, size=None, scale_factor=None, mode='nearest', align_corners=None,"
        " recompute_scale_factor=None, antialias=False",
        *("upsample", "upsample_nearest", "upsample_bilinear"),
        *(nn.Upsample, nn.UpsamplingNearest2d, nn.UpsamplingBilinear2d, *_UPSAMPLES),
        aliases={"output_size": "size", "scale_factors": "scale_factor"},
        implied={
            **_UPSAMPLES,
            F.upsample_bilinear: {"mode": "bilinear", "align_corners": True},
        },
        channels="per_channel",
        moves=lambda call: str(call.arguments.get("mode", "nearest")).startswith("nearest"),
        keeps_zero=True,
        homogeneous=True,
    ),
    _resample(
        "grid_sample",
        "input, grid, mode='bilinear', padding_mode='zeros', align_corners=None",
        *("grid_sampler", "grid_sampler_2d", "grid_sampler_3d"),
        aliases={"interpolation_mode": "mode"},
        activations=("input", "grid"),
        channels="grid_sample",
    ),
    _resample(
        "affine_grid",
        "input, size, align_corners=None",
        "affine_grid_generator",
        aliases={"theta": "input"},
    ),
)

OPS = (*_pools(1), *_pools(2), *_pools(3), _fractional(2), _fractional(3), *_RESAMPLING)
