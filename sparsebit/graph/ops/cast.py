"""Changes of dtype and device: ``x.half()``, ``x.to(torch.float16)`` and ``x.type(torch.half)`` are one."""

from __future__ import annotations

import torch
from torch.fx import Node

from sparsebit.graph.ops.spellings import family, present

_SHORTHANDS = {
    "float": torch.float32,
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "int": torch.int32,
    "long": torch.int64,
    "short": torch.int16,
    "char": torch.int8,
    "byte": torch.uint8,
    "bool": torch.bool,
    "cfloat": torch.complex64,
    "cdouble": torch.complex128,
}


def _sort_by_type(arguments: dict[str, object]) -> None:
    """``Tensor.to`` takes a dtype, a device, both, or another tensor; only the types differ."""
    for value in _as_tuple(arguments.pop("target", ())):
        if isinstance(value, torch.dtype):
            arguments["dtype"] = value
        elif isinstance(value, (str, torch.device)):
            arguments["device"] = value
        elif isinstance(value, bool):  # after the dtype: non_blocking, then copy
            arguments["copy" if "non_blocking" in arguments else "non_blocking"] = value
        elif isinstance(value, Node):
            info = value.meta.get("value")
            dtype, device = isinstance(info, torch.dtype), isinstance(info, torch.device)
            arguments["dtype" if dtype else "device" if device else "other"] = value
    for name, default in (("non_blocking", False), ("copy", False)):
        arguments.setdefault(name, default)


def _as_tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


_METHODS = {getattr(torch.Tensor, name): {"dtype": dtype} for name, dtype in _SHORTHANDS.items()}

_cast = family("cast", channels="first_operand", elementwise=True, keeps_zero=True, view=True)

OPS = (
    _cast(
        "to",
        "input, dtype=None, device=None, other=None",
        only=(
            *_METHODS,
            *(torch.Tensor.to, torch.Tensor.type, torch.Tensor.cpu, torch.Tensor.cuda),
            *(*present(torch, "_to_copy"), "aten::to", "aten::_to_copy", "prims::convert_element_type"),
            *(f"aten::_cast_{name.capitalize()}" for name in _SHORTHANDS),
        ),
        orders={torch.Tensor.to: "input, *target", torch.Tensor.type: "input, *target"},
        implied=_METHODS | {torch.Tensor.cpu: {"device": "cpu"}, torch.Tensor.cuda: {"device": "cuda"}},
        tidy=_sort_by_type,
    ),
    _cast("type_as", "input, other", only=(torch.Tensor.type_as, "aten::type_as")),
)
