"""Python functions of torch that consist of several operators, as copies that let a mode see these operators."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode


def copy_function(function: Any, names: dict[str, Any]) -> types.FunctionType:
    """A copy of a Python function in which some global names refer to other objects.

    Example:
        >>> copy_function(lambda: len([1, 2]), {"len": lambda items: 0})()
        0
    """
    found = function.__globals__ | names
    copied = types.FunctionType(
        function.__code__, found, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


OPENED: dict[Any, types.FunctionType] = {
    F.multi_head_attention_forward: copy_function(
        F.multi_head_attention_forward, {"has_torch_function": lambda *_: False}
    )
}


def run_opened(
    mode: TorchFunctionMode, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> Any:
    """Call the copy of a function from inside a mode's ``__torch_function__``, so that the mode sees its operators.

    The original offers itself to modes as one call, and its operators then run outside of them.
    """
    TorchFunctionMode.__enter__(mode)
    try:
        return OPENED[function](*args, **(kwargs or {}))
    finally:
        TorchFunctionMode.__exit__(mode, None, None, None)
