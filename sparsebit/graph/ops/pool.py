"""Pooling: windows slide inside each channel."""

from __future__ import annotations

from torch import nn

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named, present


def _stride_is_kernel(arguments: dict[str, object]) -> None:
    """An absent stride (None from ``F``, [] from aten) means the kernel size."""
    if not arguments.get("stride"):
        arguments["stride"] = arguments["kernel_size"]


def _pool(name: str, *targets: object, signature: str, random: bool = False) -> OpSpec:
    with_indices = named(f"{name}_with_indices")
    return OpSpec(
        name=name,
        targets=named(name, *targets, *(with_indices if "return_indices" in signature else ())),
        family="pool",
        implied={target: {"return_indices": True} for target in with_indices},
        signature=signature,
        tidy=_stride_is_kernel if "stride" in signature else None,
        spatial=int(name[-2]),
        channels="max_unpool" if "unpool" in name else "per_channel",
        moves="max_" in name,  # a maximum over a window is one of the numbers in it
        keeps_zero="lp_" not in name,
        homogeneous="avg_" in name,
        random=random,
    )


def _pools(dims: int) -> tuple[OpSpec, ...]:
    divisor = "" if dims == 1 else ", divisor_override=None"
    return (
        _pool(
            f"max_pool{dims}d",
            *present(nn, f"MaxPool{dims}d"),
            signature="input, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,"
            " return_indices=False",
        ),
        _pool(
            f"avg_pool{dims}d",
            *present(nn, f"AvgPool{dims}d"),
            signature="input, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True"
            + divisor,
        ),
        _pool(
            f"adaptive_avg_pool{dims}d",
            *(*present(nn, f"AdaptiveAvgPool{dims}d"), f"aten::_adaptive_avg_pool{dims}d"),
            signature="input, output_size",
        ),
        _pool(
            f"adaptive_max_pool{dims}d",
            *present(nn, f"AdaptiveMaxPool{dims}d"),
            signature="input, output_size, return_indices=False",
        ),
        _pool(
            f"lp_pool{dims}d",
            *present(nn, f"LPPool{dims}d"),
            signature="input, norm_type, kernel_size, stride=None, ceil_mode=False",
        ),
        _pool(
            f"max_unpool{dims}d",
            *present(nn, f"MaxUnpool{dims}d"),
            signature="input, indices, kernel_size, stride=None, padding=0, output_size=None",
        ),
    )


def _fractional(dims: int) -> OpSpec:
    return _pool(
        f"fractional_max_pool{dims}d",
        *present(nn, f"FractionalMaxPool{dims}d"),
        signature="input, kernel_size, output_size=None, output_ratio=None, return_indices=False",
        random=True,
    )


OPS = (*_pools(1), *_pools(2), *_pools(3), _fractional(2), _fractional(3))
