"""Tensors made from sizes and numbers. Nothing flows in, so nothing flows out."""

from __future__ import annotations

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named, present

_OPTIONS = "dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False"


def _create(
    name: str, *targets: object, signature: str, channels: str = "", keeps_zero: bool = False
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, *targets),
        family="create",
        signature=f"{signature}, {_OPTIONS}" if "*" in signature else f"{signature}, *, {_OPTIONS}",
        activations=(),
        channels=channels,
        sizes="shape" if channels == "fill" else "",
        keeps_zero=keeps_zero,
    )


def _like(name: str, signature: str = "input", keeps_zero: bool = False) -> OpSpec:
    """Takes shape and dtype from a tensor, never its numbers."""
    return _create(
        name,
        signature=f"{signature}, *, memory_format=None",
        channels="same_size",
        keeps_zero=keeps_zero,
    )


def _start_is_end(arguments: dict[str, object]) -> None:
    """``arange(5)`` binds 5 to the first name; it is the end."""
    if "end" not in arguments:
        arguments["end"] = arguments.pop("start")
    arguments.setdefault("start", 0)


OPS = (
    _create("zeros", "aten::_efficientzerotensor", signature="*size", channels="fill", keeps_zero=True),
    _create("ones", signature="*size", channels="fill"),
    _create("empty", signature="*size"),
    _create("empty_strided", signature="size, stride"),
    _create("full", signature="size, fill_value", channels="fill"),
    _create("eye", signature="n, m=None"),
    OpSpec(
        name="arange",
        targets=named("arange"),
        family="create",
        signature=f"start, end, step=1, *, {_OPTIONS}",
        tidy=_start_is_end,
        activations=(),
    ),
    _create("linspace", signature="start, end, steps"),
    _create("logspace", signature="start, end, steps, base=10.0"),
    _create("tensor", "scalar_tensor", signature="data"),
    OpSpec(  # torch.Tensor(2, 3) makes a size, torch.Tensor([2, 3]) holds numbers
        name="typed_tensor",
        targets=(torch.Tensor, *present(torch, "FloatTensor", "LongTensor", "IntTensor", "BoolTensor")),
        family="create",
        signature="*data",
        activations=(),
    ),
    OpSpec(  # hands a tensor through, if it gets one
        name="as_tensor",
        targets=named("as_tensor", "asarray", "from_numpy"),
        family="create",
        signature=f"data, *, {_OPTIONS}, copy=None",
        aliases={"obj": "data"},
        activations=("data",),
        elementwise=True,
        keeps_zero=True,
        view=True,
    ),
    _create("tril_indices", signature="row, col, offset=0"),
    _create("triu_indices", signature="row, col, offset=0"),
    _create("hann_window", signature="window_length, periodic=True"),
    _create("hamming_window", signature="window_length, periodic=True"),
    _create("blackman_window", signature="window_length, periodic=True"),
    _create("bartlett_window", signature="window_length, periodic=True"),
    _create("kaiser_window", signature="window_length, periodic=True, beta=12.0"),
    _like("zeros_like", keeps_zero=True),
    _like("ones_like"),
    _like("empty_like"),
    _like("full_like", "input, fill_value"),
    _create("new_zeros", signature="input, *size", channels="fill", keeps_zero=True),
    _create("new_ones", signature="input, *size", channels="fill"),
    _create("new_empty", signature="input, *size"),
    _create("new_full", signature="input, size, fill_value", channels="fill"),
    _create("new_tensor", signature="input, data"),
)
