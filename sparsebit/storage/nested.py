"""Example inputs as JSON: tuples, lists, dicts, plain values and tensors, and nothing that could run code when read."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sparsebit.errors import ArtifactError, with_article

if TYPE_CHECKING:
    from torch import Tensor

_HINT = "pass example_inputs= or example_kwargs= to load()"
_SEQUENCES: dict[str, type[Any]] = {"tuple": tuple, "list": list}


class UnsupportedValue(Exception):
    """A value that cannot be encoded; the text names its type."""


def encode_nested(value: Any, keep: Callable[[Tensor], Any]) -> Any:
    """Plain data for a nested value. ``keep`` stores a tensor and returns the plain data that finds it again.

    Types are compared exactly: a dataclass or a named tuple is not a dict or a tuple, and raises ``UnsupportedValue``.

    Example:
        >>> encode_nested((1, {"mask": None}), keep=str)
        {'tuple': [1, {'dict': [['mask', None]]}]}
    """
    from torch import Tensor

    if isinstance(value, Tensor):
        return {"tensor": keep(value)}
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    for name, kind in _SEQUENCES.items():
        if type(value) is kind:
            return {name: [encode_nested(item, keep) for item in value]}
    if type(value) in (dict, OrderedDict) and all(type(key) in (str, int) for key in value):
        return {"dict": [[key, encode_nested(item, keep)] for key, item in value.items()]}
    raise UnsupportedValue(type(value).__name__)


def decode_nested(data: Any, find: Callable[[Any], Tensor]) -> Any:
    """The value that ``encode_nested`` encoded; ``find`` returns the tensor for what ``keep`` returned.

    Example:
        >>> decode_nested({"tuple": [1, {"dict": [["mask", None]]}]}, find=str)
        (1, {'mask': None})
    """
    if data is None or isinstance(data, bool | int | str | float):
        return data
    if isinstance(data, dict) and len(data) == 1:
        ((kind, held),) = data.items()
        if kind == "tensor":
            return find(held)
        if kind == "float" and held in ("inf", "-inf", "nan"):
            return float(held)
        if kind in _SEQUENCES and isinstance(held, list):
            return _SEQUENCES[kind](decode_nested(item, find) for item in held)
        if kind == "dict" and isinstance(held, list) and all(map(_is_pair, held)):
            return {key: decode_nested(item, find) for key, item in held}
    raise _damaged("tuples, lists, dicts, tensors and plain values", got=repr(data)[:80])


def encode_call(args: Sequence[Any], kwargs: Mapping[str, Any], keep: Callable[[Tensor], Any]) -> Any:
    """Plain data for the arguments of a call; of one that cannot be encoded, the type: {"unsupported": "MyInput"}."""
    try:
        return encode_nested((tuple(args), dict(kwargs)), keep)
    except UnsupportedValue as error:
        return {"unsupported": str(error)}


def decode_call(data: Any, find: Callable[[Any], Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments of a call that ``encode_call`` encoded; an error if it could not."""
    if isinstance(data, Mapping) and isinstance(kind := data.get("unsupported"), str):
        raise ArtifactError(
            "the example inputs of this model could not be saved with it",
            got=f"{with_article(kind)} among them",
            hint=_HINT,
        )
    value = decode_nested(data, find)
    if isinstance(value, tuple) and len(value) == 2:
        args, kwargs = value
        if isinstance(args, tuple) and isinstance(kwargs, dict) and all(type(key) is str for key in kwargs):
            return args, kwargs
    raise _damaged("positional and keyword arguments")


def _damaged(expected: str, got: str | None = None) -> ArtifactError:
    return ArtifactError("the saved example inputs are damaged", expected=expected, got=got, hint=_HINT)


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and type(item[0]) in (str, int)
