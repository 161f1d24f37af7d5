"""Tensors created from sizes and numbers. They have no activation inputs, so no channels pass through."""

from __future__ import annotations

import torch

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import family, present

_OPTIONS = "dtype=None, layout=None, device=None, pin_memory=False, requires_grad=False"
_row = family("create", activations=())


def _create(name: str, signature: str, *targets: object, **fields: object) -> OpSpec:
    """A function with the options that all tensor-creating functions have."""
    return _row(name, f"{signature}, {'' if '*' in signature else '*, '}{_OPTIONS}", *targets, **fields)


def _fill(name: str, signature: str, *targets: object, **fields: object) -> OpSpec:
    """One number in a tensor of a given size."""
    return _create(name, signature, *targets, channels="fill", sizes="shape", **fields)


def _like(name: str, signature: str = "input", **fields: object) -> OpSpec:
    """Takes shape and dtype from a tensor, never its numbers."""
    return _create(name, f"{signature}, *, memory_format=None", channels="same_size", **fields)


def _start_is_end(arguments: dict[str, object]) -> None:
    """``arange(5)`` binds 5 to the first name; it is the end."""
    if "end" not in arguments:
        arguments["end"] = arguments.pop("start")
    arguments.setdefault("start", 0)


OPS = (
    _fill("zeros", "*size", "aten::_efficientzerotensor", keeps_zero=True),
    _fill("ones", "*size"),
    _create("empty", "*size"),
    _create("empty_strided", "size, stride"),
    _fill("full", "size, fill_value"),
    _create("eye", "n, m=None"),
    _create("arange", "start, end, step=1", tidy=_start_is_end),
    _create("linspace", "start, end, steps"),
    _create("logspace", "start, end, steps, base=10.0"),
    _create("tensor", "data", "scalar_tensor", activations=("data",)),
    _row(  # torch.Tensor(2, 3) makes a size, torch.Tensor([2, 3]) holds numbers
        "typed_tensor",
        "*data",
        activations=("data",),
        only=(torch.Tensor, *present(torch, "FloatTensor", "LongTensor", "IntTensor", "BoolTensor")),
    ),
    _row(  # hands a tensor through, if it gets one
        "as_tensor",
        f"data, *, {_OPTIONS}, copy=None",
        *("asarray", "from_numpy"),
        aliases={"obj": "data"},
        activations=("data",),
        elementwise=True,
        keeps_zero=True,
        view=True,
    ),
    _create("tril_indices", "row, col, offset=0"),
    _create("triu_indices", "row, col, offset=0"),
    *(
        _create(f"{kind}_window", "window_length, periodic=True")
        for kind in ("hann", "hamming", "blackman", "bartlett")
    ),
    _create("kaiser_window", "window_length, periodic=True, beta=12.0"),
    _like("zeros_like", keeps_zero=True),
    _like("ones_like"),
    _like("empty_like"),
    _like("full_like", "input, fill_value"),
    _fill("new_zeros", "input, *size", keeps_zero=True),
    _fill("new_ones", "input, *size"),
    _create("new_empty", "input, *size"),
    _fill("new_full", "input, size, fill_value"),
    _create("new_tensor", "input, data", activations=("data",)),
)
