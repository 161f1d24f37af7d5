"""The origin of a shrunk model: what is needed to create it again from the original class."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sparsebit.batches import Call
from sparsebit.storage import ArtifactError
from sparsebit.storage.nested import decode_call, encode_call

Form = Literal["graph", "module"]
_SHORT = 4096
_MOST = 2**28  # elements of an example that is made from a written size


@dataclass(frozen=True, eq=False)
class Origin:
    """The config, the graph's digest, what was kept of it, and the sizes of the inputs it was recorded with.

    ``form`` is "graph", or "module" for a model of the user's own class.
    """

    config: dict[str, Any]
    graph: str
    kept: Mapping[str, Tensor]
    inputs: Any
    form: Form = "graph"


def describe_example(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Example inputs as JSON data: sizes and types of tensors, the values of short ones of integers, and plain values.

    None if there are none.

    Example:
        >>> describe_example((torch.zeros(1, 2),), {"use_cache": False})["tuple"][0]
        {'tuple': [{'tensor': ['float32', [1, 2]]}]}
    """
    return encode_call(args, kwargs, _describe) if args or kwargs else None


def described_example(described: Any) -> Call | None:
    """Inputs of the described sizes, with zeros if values were not kept; None if there are none."""
    return None if described is None else Call(*decode_call(described, _zeros_or_values))


def _describe(tensor: Tensor) -> list[Any]:
    told = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
    short = tensor.numel() <= _SHORT and not tensor.is_floating_point() and not tensor.is_complex()
    # lengths and indices decide what a model does
    return [*told, tensor.flatten().tolist()] if short else told


def _zeros_or_values(told: Any) -> Tensor:
    dtype = getattr(torch, told[0], None) if _is_description(told) else None
    if not isinstance(dtype, torch.dtype) or math.prod(told[1]) > _MOST:
        raise _damaged(told)
    if len(told) == 2:
        return torch.zeros(told[1], dtype=dtype)
    try:
        return torch.tensor(told[2], dtype=dtype).reshape(told[1])
    except (RuntimeError, TypeError, ValueError, OverflowError):
        raise _damaged(told) from None


def _is_description(told: Any) -> bool:
    """Whether this is [type, sizes] or [type, sizes, values]."""
    return (
        isinstance(told, list)
        and len(told) in (2, 3)
        and isinstance(told[0], str)
        and isinstance(told[1], list)
        and len(told[1]) <= 16
        and all(type(size) is int and 0 <= size <= _MOST for size in told[1])
        and (len(told) == 2 or (isinstance(told[2], list) and all(type(v) in (int, bool) for v in told[2])))
    )


def _damaged(told: Any) -> ArtifactError:
    return ArtifactError(
        "the saved sizes of the example inputs are damaged",
        expected=f"a type, and sizes of at most {_MOST} elements in all",
        got=repr(told)[:80],
        hint="pass example_inputs= or example_kwargs= to load()",
    )
