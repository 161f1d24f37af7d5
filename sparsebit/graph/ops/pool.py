"""Pooling: windows slide inside each channel."""

from __future__ import annotations

from torch import nn

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import family, named, present

_row = family("pool")
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


OPS = (*_pools(1), *_pools(2), *_pools(3), _fractional(2), _fractional(3))
