"""``len(x)`` of a tensor as a symbolic size.

Python's ``len`` gives a plain number, whatever the tensor says. So while a recording runs, modules whose own
``forward`` calls ``len`` run a copy of that function with another ``len``. The copy has separate global names:
nothing that other code can see is replaced.
"""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from sparsebit.graph.exclusive import exclusively, replaced
from sparsebit.graph.opened import copy_function


@exclusively
def following_len(model: nn.Module, length: Callable[[Tensor], int | None]) -> Iterator[None]:
    """Let ``len`` of a tensor in the model's own forward functions return ``length(tensor)``, unless that is None."""

    def size_len(value: Any) -> int:
        found = length(value) if isinstance(value, Tensor) else None
        return builtins.len(value) if found is None else found

    changes = []
    for module in model.modules():
        if "forward" not in vars(module) and _calls_len(type(module).forward):
            own = types.MethodType(copy_function(type(module).forward, {"len": size_len}), module)
            changes.append((module, "forward", own))
    with replaced(*changes):
        yield


@functools.lru_cache(maxsize=256)
def _calls_len(function: Any) -> bool:
    if not isinstance(function, types.FunctionType) or "len" in function.__globals__:
        return False
    codes = list(_codes(function.__code__))
    return any("len" in code.co_names for code in codes) and not any(map(_writes_globals, codes))


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _writes_globals(code: types.CodeType) -> bool:
    return any(step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for step in dis.get_instructions(code))
