"""Replacements for functions that an exporter lacks, or writes in forms that runtimes do not read."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Reduce = Callable[..., Tensor]


class Spelled(TorchFunctionMode):
    """Inside the block every function in the table is replaced by its entry, also inside modules."""

    def __init__(self, table: Mapping[Any, Callable[..., Any]] | None = None) -> None:
        super().__init__()
        self.table = SPELLINGS if table is None else table

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """One call."""
        kwargs = kwargs or {}
        result = self.table[func](*args, **kwargs) if func in self.table else None
        return func(*args, **kwargs) if result is None else result  # None: this call needs no other spelling


def concatenate_columns(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.hstack``, which becomes an ONNX sequence; OpenVINO reads none."""
    parts = [torch.atleast_1d(tensor) for tensor in tensors]
    return torch.cat(parts, 0 if parts[0].dim() == 1 else 1)


def concatenate_rows(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.vstack``, likewise."""
    return torch.cat([torch.atleast_2d(tensor) for tensor in tensors], 0)


def concatenate_depth(tensors: Sequence[Tensor]) -> Tensor:
    """``torch.dstack``, likewise."""
    return torch.cat([torch.atleast_3d(tensor) for tensor in tensors], 2)


def split_by_slices(
    input: Tensor, indices_or_sections: Any, dim: int = 0, **named: Any
) -> tuple[Tensor, ...]:
    """``torch.tensor_split``, likewise: the first parts are one longer if the length is not a multiple.

    Example:
        >>> [part.tolist() for part in split_by_slices(torch.arange(5), 2)]
        [[0, 1, 2], [3, 4]]
    """
    asked = named.get("sections", named.get("indices", indices_or_sections))
    length = int(input.shape[dim])
    if isinstance(asked, int):
        sizes = [length // asked + (part < length % asked) for part in range(asked)]
    else:
        ends = [min(max(end + length if end < 0 else end, 0), length) for end in asked]
        sizes = [max(end - start, 0) for start, end in zip([0, *ends], [*ends, length], strict=True)]
    starts = [sum(sizes[:part]) for part in range(len(sizes))]
    return tuple(input.narrow(dim, start, size) for start, size in zip(starts, sizes, strict=True))


def repeat_all(input: Tensor, dims: Sequence[int]) -> Tensor:
    """``torch.tile``, which becomes a branch (If)."""
    return input.repeat(*[1] * (input.dim() - len(dims)), *dims)


def exp_minus_one(input: Tensor) -> Tensor:
    """``torch.expm1``, exact near 0: there it is 2t / (1 - t) with t = tanh(x / 2)."""
    half = torch.tanh(input / 2)
    return torch.where(input.abs() < 1, 2 * half / (1 - half), torch.exp(input) - 1)


def hypotenuse(input: Tensor, other: Tensor) -> Tensor:
    """``torch.hypot``."""
    return torch.sqrt(input * input + other * other)


def angle_of(input: Tensor, other: Tensor) -> Tensor:
    """``torch.atan2``, for which exporters write -π instead of π at 0 with a negative second argument."""
    y, x = input * 1.0, other * 1.0
    below, left = (y < 0) | (1 / y < 0), (x < 0) | (1 / x < 0)  # 1 / -0.0 is below 0
    angle = torch.where((x == 0) & (y == 0), y, torch.atan(y / x))
    return torch.where(left, torch.where(below, angle - math.pi, angle + math.pi), angle)


def threshold_by_where(input: Tensor, threshold: float, value: float, inplace: bool = False) -> Tensor:
    """``functional.threshold``, whose threshold must be 0 for an exporter."""
    return torch.where(input > threshold, input, torch.full_like(input, value))


def shuffle_channels(input: Tensor, groups: int) -> Tensor:
    """``functional.channel_shuffle``."""
    return input.reshape(input.shape[0], groups, -1, *input.shape[2:]).transpose(1, 2).flatten(1, 2)


def norm_by_mean_square(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """``functional.rms_norm``."""
    axes = tuple(range(-len(normalized_shape), 0))
    square = (input * input).mean(axes, keepdim=True)
    result = input * torch.rsqrt(square + (torch.finfo(input.dtype).eps if eps is None else eps))
    return result if weight is None else result * weight


def norm_over_neighbours(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """``functional.local_response_norm``, which becomes a branch (If)."""
    square = input * input
    before, after = square[:, :1] * 0, square[:, :1] * 0
    padded = torch.cat([*[before] * (size // 2), square, *[after] * ((size - 1) // 2)], 1)
    channels = int(input.shape[1])
    mean = sum((padded.narrow(1, start, channels) for start in range(1, size)), padded.narrow(1, 0, channels))
    return input / (mean / size * alpha + k) ** beta


def norm_of_batch(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """``functional.batch_norm`` by the statistics of the batch; the one by running statistics stays as it is."""
    if running_mean is not None:
        return None
    axes = (0, *range(2, input.dim()))
    shape = (1, -1, *[1] * (input.dim() - 2))
    centred = input - input.mean(axes, keepdim=True)
    result = centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)
    result = result if weight is None else result * weight.reshape(shape)
    return result if bias is None else result + bias.reshape(shape)


def bilinear_by_matmul(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``functional.bilinear``, weight [outputs, inputs 1, inputs 2]."""
    outputs, first, second = weight.shape
    rows = input1 @ weight.transpose(0, 1).reshape(first, outputs * second)
    result = (rows.reshape(*rows.shape[:-1], outputs, second) * input2.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


def attend_by_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """``functional.scaled_dot_product_attention`` without an axis for heads, or with heads that share keys."""
    flat = query.dim() == key.dim() == value.dim() == 3
    if not flat and not enable_gqa:
        return None
    if flat:
        query, key, value = (tensor.unsqueeze(1) for tensor in (query, key, value))
        attn_mask = attn_mask.unsqueeze(1) if attn_mask is not None and attn_mask.dim() == 3 else attn_mask
    elif enable_gqa:
        key, value = (
            tensor.repeat_interleave(query.shape[-3] // tensor.shape[-3], -3) for tensor in (key, value)
        )
    result = functional.scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale
    )
    return result.squeeze(1) if flat else result


def multiply_by_groups(
    input: Tensor, weight: Tensor, *, offs: Tensor | None = None, bias: Tensor | None = None, **named: Any
) -> Tensor | None:
    """``functional.grouped_mm`` of rows [N, K] with one matrix [K, M] for each run of them: all are computed.

    ``offs`` are the ends of the runs. A row after the last of them gets zeros.
    """
    if input.dim() != 2 or weight.dim() != 3 or offs is None or bias is not None or any(named.values()):
        return None
    rows = torch.arange(input.shape[0], device=offs.device)
    starts = torch.cat([offs[:1] * 0, offs[:-1]])
    inside = (rows >= starts[:, None]) & (rows < offs[:, None])
    return ((input * inside[:, :, None].to(input.dtype)) @ weight).sum(0)


def count_by_bins(input: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor | None:
    """``torch.histc`` between given ends, which routers of experts count tokens with.

    Example:
        >>> count_by_bins(torch.tensor([0.0, 1.0, 1.0, 3.0, 9.0]), bins=4, min=0, max=3)
        tensor([1., 2., 0., 1.])
    """
    if min >= max:
        return None  # the ends are those of the data
    values = input.reshape(-1, 1)
    places = ((values - min) * bins / (max - min)).floor().clamp(max=bins - 1)
    hits = (places == torch.arange(bins, device=input.device)) & (values >= min) & (values <= max)
    return hits.to(input.dtype).sum(0)


def pool_by_slices(
    rank: int, reduce: Reduce, input: Tensor, output_size: Any, *more: Any, **named: Any
) -> Tensor | None:
    """``functional.adaptive_avg_pool`` and ``adaptive_max_pool`` with windows of different lengths along an axis."""
    sizes = list(output_size) if isinstance(output_size, Sequence) else [output_size] * rank
    lengths = [int(length) for length in input.shape[-rank:]]
    windows = {
        axis - rank: (length, size)
        for axis, (length, size) in enumerate(zip(lengths, sizes, strict=True))
        if size
    }
    if all(length % size == 0 for length, size in windows.values()):
        return None
    for axis, (length, size) in windows.items():
        ends = [(place * length // size, -(-(place + 1) * length // size)) for place in range(size)]
        parts = [reduce(input.narrow(axis, start, end - start), axis, keepdim=True) for start, end in ends]
        input = torch.cat(parts, axis)
    return input


SPELLINGS: dict[Any, Callable[..., Any]] = {
    torch.hstack: concatenate_columns,
    torch.vstack: concatenate_rows,
    torch.dstack: concatenate_depth,
    torch.tensor_split: split_by_slices,
    torch.Tensor.tensor_split: split_by_slices,
    torch.tile: repeat_all,
    torch.expm1: exp_minus_one,
    torch.hypot: hypotenuse,
    torch.atan2: angle_of,
    functional.threshold: threshold_by_where,
    functional.channel_shuffle: shuffle_channels,
    functional.rms_norm: norm_by_mean_square,
    functional.local_response_norm: norm_over_neighbours,
    functional.batch_norm: norm_of_batch,
    functional.bilinear: bilinear_by_matmul,
    functional.scaled_dot_product_attention: attend_by_heads,
    torch.histc: count_by_bins,
    torch.Tensor.histc: count_by_bins,
    **{
        getattr(owner, name): multiply_by_groups
        for owner, name in ((functional, "grouped_mm"), (torch, "_grouped_mm"))  # not in every torch
        if hasattr(owner, name)
    },
    functional.adaptive_avg_pool1d: partial(pool_by_slices, 1, torch.mean),
    functional.adaptive_avg_pool2d: partial(pool_by_slices, 2, torch.mean),
    functional.adaptive_avg_pool3d: partial(pool_by_slices, 3, torch.mean),
    functional.adaptive_max_pool1d: partial(pool_by_slices, 1, torch.amax),
    functional.adaptive_max_pool2d: partial(pool_by_slices, 2, torch.amax),
    functional.adaptive_max_pool3d: partial(pool_by_slices, 3, torch.amax),
}


def sort_first(input: Tensor, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    """``torch.sort``, equal values in the order they came."""
    return torch.sort(input, dim=dim, descending=descending, stable=True)


def argsort_first(input: Tensor, dim: int = -1, descending: bool = False, **_: Any) -> Tensor:
    """``torch.argsort``, likewise."""
    return torch.sort(input, dim=dim, descending=descending, stable=True).indices


def topk_first(
    input: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> torch.return_types.topk:
    """``torch.topk``, likewise."""
    values, places = torch.sort(input, dim=dim, descending=largest, stable=True)
    return torch.return_types.topk((values.narrow(dim, 0, k), places.narrow(dim, 0, k)))


# torch does not define which of two equal values comes first; in ONNX it is the first one. A reference for a file needs
# this order: experts are sorted by their number, and quantized scores are often equal.
TIES: dict[Any, Callable[..., Any]] = {
    torch.sort: sort_first,
    torch.Tensor.sort: sort_first,
    torch.argsort: argsort_first,
    torch.Tensor.argsort: argsort_first,
    torch.topk: topk_first,
    torch.Tensor.topk: topk_first,
}
