"""Sizes, other facts about tensors, and the Python arithmetic done on them.

``+``, ``//`` and the like are in the element-wise table whatever they work on: one Python operator, one name.
Whether a node holds a number shows in its recorded value, not in its operator.
"""

from __future__ import annotations

import math
import operator

import torch
from torch.fx import Node

from sparsebit.graph.ops.spellings import family, present

_fact = family("size", activations=())
_python = family("size", activations=(), signature="*values")
_PROPERTIES = {
    "shape": "size",
    "T": "t",
    "mT": "matrix_transpose",
    "mH": "adjoint",
    "H": "adjoint",
    "ndim": "dim",
}
_PROPERTIES |= {name: name for name in ("real", "imag", "dtype", "device")}
_MATH = (
    *("floor", "ceil", "trunc", "sqrt", "log", "log2", "exp", "prod", "pow", "gcd", "isqrt", "fabs"),
    *("cos", "sin"),
)
_TESTS = (operator.is_, operator.is_not, operator.contains, isinstance, hasattr, torch.is_tensor)


def _which_property(node: Node) -> str:
    """``x.shape`` is written in a graph as ``getattr(x, "shape")``."""
    name = node.args[1] if len(node.args) > 1 else None
    return "detach" if name == "data" else _PROPERTIES.get(str(name), "getattr")


OPS = (
    _fact("size", "input, dim=None", "aten::sym_size"),
    _fact("stride", "input, dim=None", "aten::sym_stride"),
    _fact("storage_offset", "input", "aten::sym_storage_offset"),
    _fact("numel", "input", "nelement", "aten::sym_numel"),
    _fact("dim", "input", "ndimension"),
    *map(_fact, ("dtype", "device", "is_floating_point", "is_complex", "is_nonzero", "tolist")),
    _fact("is_contiguous", "input, memory_format=None"),
    _fact(
        "item",
        "input",
        "aten::_local_scalar_dense",
        *present(torch.Tensor, "__int__", "__bool__", "__float__", "__index__"),
    ),
    _fact("result_type", "input, other"),
    _fact("getattr", "input, attribute, default=None", only=(), overloads={getattr: _which_property}),
    _python("len", only=(len, torch.Tensor.__len__)),
    _python("int", only=(int, operator.index, *present(torch, "sym_int"))),
    _python("float", only=(float, *present(torch, "sym_float"))),
    _python("bool", only=(bool, operator.truth)),
    _python("not", only=(operator.not_, *present(torch, "sym_not"))),
    _python("builtin_max", only=(max, *present(torch, "sym_max"))),
    _python("builtin_min", only=(min, *present(torch, "sym_min"))),
    _python("builtin_sum", only=(sum, *present(torch, "sym_sum"))),
    # groups: they compute numbers or containers of them, and the target says which
    _python("math", only=present(math, *_MATH)),
    _python("sequence", only=(tuple, list, dict, slice, range, operator.concat, operator.iconcat)),
    _python("test", only=_TESTS),
    _python("type_info", only=(torch.finfo, torch.iinfo)),
    _python(
        "global_state",
        only=present(torch, "is_grad_enabled", "is_autocast_enabled", "is_inference_mode_enabled"),
    ),
    _fact("mode_constant", "", only=(), class_names=("ModeConstant",)),
)
