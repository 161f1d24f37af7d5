"""Sizes, other facts about tensors, and the Python arithmetic done on them.

``+``, ``//`` and the like are in the element-wise table whatever they work on: one Python operator, one name.
Whether a node holds a number shows in its recorded value, not in its operator.
"""

from __future__ import annotations

import math
import operator

import torch
from torch.fx import Node

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named, present


def _fact(name: str, *targets: object, signature: str = "input") -> OpSpec:
    return OpSpec(
        name=name, targets=named(name, *targets), family="size", signature=signature, activations=()
    )


def _python(name: str, *targets: object, signature: str = "*values") -> OpSpec:
    return OpSpec(name=name, targets=targets, family="size", signature=signature, activations=())


_PROPERTIES = {
    "shape": "size",
    "T": "t",
    "mT": "matrix_transpose",
    "mH": "adjoint",
    "H": "adjoint",
    "ndim": "dim",
} | {name: name for name in ("real", "imag", "dtype", "device")}


def _which_property(node: Node) -> str:
    """``x.shape`` stands in a graph as ``getattr(x, "shape")``."""
    name = node.args[1] if len(node.args) > 1 else None
    return "detach" if name == "data" else _PROPERTIES.get(str(name), "getattr")


_MATH = (
    "floor",
    "ceil",
    "trunc",
    "sqrt",
    "log",
    "log2",
    "exp",
    "prod",
    "pow",
    "gcd",
    "isqrt",
    "fabs",
    "cos",
    "sin",
)

OPS = (
    _fact("size", "aten::sym_size", signature="input, dim=None"),
    _fact("stride", "aten::sym_stride", signature="input, dim=None"),
    _fact("storage_offset", "aten::sym_storage_offset"),
    _fact("numel", "nelement", "aten::sym_numel"),
    _fact("dim", "ndimension"),
    _fact("dtype"),
    _fact("device"),
    _fact("is_floating_point"),
    _fact("is_complex"),
    _fact("is_contiguous", signature="input, memory_format=None"),
    _fact("is_nonzero"),
    _fact("tolist"),
    _fact(
        *("item", "aten::_local_scalar_dense"),
        *present(torch.Tensor, "__int__", "__bool__", "__float__", "__index__"),
    ),
    _fact("result_type", signature="input, other"),
    OpSpec(
        name="getattr",
        targets=(),
        overloads={getattr: _which_property},
        family="size",
        signature="input, attribute, default=None",
        activations=(),
    ),
    _python("len", len, torch.Tensor.__len__),
    _python("int", int, operator.index, *present(torch, "sym_int")),
    _python("float", float, *present(torch, "sym_float")),
    _python("bool", bool, operator.truth),
    _python("not", operator.not_, *present(torch, "sym_not")),
    _python("builtin_max", max, *present(torch, "sym_max")),
    _python("builtin_min", min, *present(torch, "sym_min")),
    _python("builtin_sum", sum, *present(torch, "sym_sum")),
    # groups: they compute numbers or containers of them, and the target says which
    _python("math", *present(math, *_MATH)),
    _python("sequence", tuple, list, dict, slice, range, operator.concat, operator.iconcat),
    _python("test", operator.is_, operator.is_not, operator.contains, isinstance, hasattr, torch.is_tensor),
    _python("type_info", torch.finfo, torch.iinfo),
    _python(
        "global_state",
        *present(torch, "is_grad_enabled", "is_autocast_enabled", "is_inference_mode_enabled"),
    ),
    OpSpec(
        name="mode_constant",
        targets=(),
        class_names=("ModeConstant",),
        family="size",
        signature="",
        activations=(),
    ),
)
