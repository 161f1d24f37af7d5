"""One spelling for each meaning: torch functions, Tensor methods and operators become one canonical function each.

``x + y``, ``x.add(y)`` and ``torch.add(x, y)`` all become ``operator.add``; a method with a torch function of the same
meaning becomes that function; sizes given one by one become one tuple. Passes then look for one target, not five.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]

_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BITS = ("and_", "or_", "xor", "lshift", "rshift")
# names of torch functions and Tensor methods that are an operator, if they have two operands and no further options
_SAME_AS = {
    **{name: name for name in ("add", "sub", "mul", "pow", "matmul", *_COMPARISONS)},
    **{"subtract": "sub", "multiply": "mul", "div": "truediv", "divide": "truediv", "true_divide": "truediv"},
    **{"floor_divide": "floordiv", "remainder": "mod", "not_equal": "ne", "less": "lt", "less_equal": "le"},
    **{
        "greater": "gt",
        "greater_equal": "ge",
        "bitwise_and": "and_",
        "bitwise_or": "or_",
        "bitwise_xor": "xor",
    },
    **{f"__{name.rstrip('_')}__": name for name in (*_ARITHMETIC, *_COMPARISONS, *_BITS, "getitem")},
    "__div__": "truediv",
}
_BINARY: dict[str, Callable[..., Any]] = {name: getattr(operator, same) for name, same in _SAME_AS.items()}
# the same with the operands swapped: ``1 - x``
_REFLECTED: dict[str, Callable[..., Any]] = {
    f"__r{name.rstrip('_')}__": getattr(operator, name) for name in (*_ARITHMETIC, *_BITS[:3])
} | {"__rdiv__": operator.truediv, "rsub": operator.sub}
_UNARY: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("neg", "negative", "__neg__"), operator.neg),
    **dict.fromkeys(("bitwise_not", "__invert__"), operator.invert),
    **dict.fromkeys(("__abs__", "absolute"), torch.abs),
    "__pos__": torch.positive,
}
# Tensor methods that take sizes or dimensions one by one as well as in a tuple
_SIZE_METHODS = {
    *("view", "reshape", "permute", "expand", "repeat", "tile", "flip", "movedim", "resize", "unflatten"),
    *("new_zeros", "new_ones", "new_empty"),
}
_SIZE_FUNCTIONS = {"zeros", "ones", "empty", "rand", "randn"}
_SYNONYMS: dict[Any, Callable[..., Any]] = {
    torch.concat: torch.cat,
    torch.concatenate: torch.cat,
    torch.swapaxes: torch.transpose,
    torch.swapdims: torch.transpose,
    torch.moveaxis: torch.movedim,
    torch.clip: torch.clamp,
    torch.arccos: torch.acos,
    torch.fix: torch.trunc,
}
# a method of this name differs from the torch function, or has no such function
_METHODS_ONLY = {
    *("where", "to", "type", "view", "expand", "repeat", "size", "contiguous", "stft", "istft", "norm"),
    *("split", "polygamma"),
}
_OPERAND_NAMES = ({"input", "self"}, {"other", "exponent"})


# Python functions of the Tensor class by the name they have there: some are wrapped under the name of another
_PYTHON_METHODS = {
    function: name
    for name, function in vars(torch.Tensor).items()
    if isinstance(function, types.FunctionType)
}


def name_of(function: Any) -> str:
    """The name of a callable: for Tensor methods, the name in the class."""
    if isinstance(function, types.FunctionType) and function in _PYTHON_METHODS:
        return _PYTHON_METHODS[function]
    return str(getattr(function, "__name__", ""))


def is_tensor_method(function: Any) -> bool:
    """Whether a callable is a method of ``torch.Tensor`` (a C slot or a Python function)."""
    owner = getattr(function, "__objclass__", None)
    if owner is not None:
        return issubclass(torch.Tensor, owner)
    return isinstance(function, types.FunctionType) and function in _PYTHON_METHODS


def canonical_call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_shape: Callable[[Any], bool] = lambda value: isinstance(value, tuple | list),
) -> Call:
    """The canonical spelling of a call at the torch API level; tensors may be real ones or FX nodes.

    ``is_shape`` says whether a single argument holds all sizes or is one of them.

    Example:
        >>> canonical_call(torch.Tensor.__rsub__, ("x", 1), {})
        (<built-in function sub>, (1, 'x'), {})
    """
    name = name_of(function)
    method = is_tensor_method(function)
    if not method and (not name or getattr(torch, name, None) is not function):
        return function, args, kwargs
    if name in _BINARY or name in _REFLECTED:
        operands = _two_operands(args, kwargs)
        if operands is not None:
            if name in _REFLECTED:
                return _REFLECTED[name], operands[::-1], {}
            return _BINARY[name], operands, {}
    if name in _UNARY and len(args) == 1 and not kwargs:
        return _UNARY[name], args, {}
    if method:
        return _canonical_method(function, name, args, kwargs, is_shape)
    function = _SYNONYMS.get(function, function)
    if name in _SIZE_FUNCTIONS and args and not is_shape(args[0]):
        args = (args,)
    return function, _tuples(name, args), kwargs


def _canonical_method(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    is_shape: Callable[[Any], bool],
) -> Call:
    if name in _SIZE_METHODS:
        args = _gather_sizes(name, args, is_shape)
    if name == "where" and len(args) == 3:  # x.where(condition, other)
        return torch.where, (args[1], args[0], args[2]), kwargs
    if name == "split":
        sizes = {"split_size": "split_size_or_sections"}
        return torch.split, args, {sizes.get(key, key): value for key, value in kwargs.items()}
    if name == "norm":
        return torch.norm, args, kwargs
    twin = getattr(torch, name, None)
    if name not in _METHODS_ONLY and isinstance(twin, types.BuiltinFunctionType | types.FunctionType):
        return _SYNONYMS.get(twin, twin), _tuples(name, args), kwargs
    public = getattr(torch.Tensor, name, function)
    return public, args, kwargs


def _gather_sizes(name: str, args: tuple[Any, ...], is_shape: Callable[[Any], bool]) -> tuple[Any, ...]:
    lead = 2 if name == "unflatten" else 1
    rest = args[lead:]
    if name in ("unflatten", "movedim") or not rest or isinstance(rest[0], torch.dtype | str):
        return args
    if not is_shape(rest[0]):
        return (*args[:lead], rest)
    return (*args[:lead], tuple(rest[0]) if isinstance(rest[0], tuple | list) else rest[0])


def _tuples(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name in ("reshape", "permute", "flip", "tile") and len(args) > 1 and isinstance(args[1], list):
        return (args[0], tuple(args[1]), *args[2:])
    return args


def _two_operands(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any] | None:
    if len(args) == 2 and not kwargs:
        return args[0], args[1]
    if len(args) + len(kwargs) != 2:
        return None
    given = dict(enumerate(args))
    for key, value in kwargs.items():
        place = next((index for index, names in enumerate(_OPERAND_NAMES) if key in names), None)
        if place is None or place in given:
            return None
        given[place] = value
    return given[0], given[1]


def canonical_aten(name: str, overload: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """The canonical spelling of an aten operator: torch's own bindings take the same arguments."""
    if name in _BINARY and len(args) == 2 and not kwargs:
        return _BINARY[name], args, kwargs
    if name in _UNARY and len(args) == 1 and not kwargs:
        return _UNARY[name], args, kwargs
    for home in (torch, torch.nn.functional):
        function = getattr(home, name, None)
        if isinstance(function, types.BuiltinFunctionType) and name not in _METHODS_ONLY:
            return _SYNONYMS.get(function, function), _tuples(name, args), kwargs
    if name in ("view", "expand", "repeat", "contiguous", "new_zeros", "new_ones"):
        return (
            getattr(torch.Tensor, name),
            tuple(tuple(a) if isinstance(a, list) else a for a in args),
            kwargs,
        )
    return overload, args, kwargs


def functional_twin(name: str) -> Callable[..., Any] | None:
    """The out-of-place method of an in-place one: ``add_`` → ``torch.Tensor.add``."""
    if not name.endswith("_") or name.startswith("__"):
        return None
    return getattr(torch.Tensor, name[:-1], None)
