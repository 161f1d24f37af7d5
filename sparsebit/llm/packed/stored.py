"""Packed matrices by name as tensors and plain data, for folders of JSON and safetensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from sparsebit.numerics.packed import PackedTensor
from sparsebit.storage import Fields


def to_stored(weights: Mapping[str, PackedTensor]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The tensors of all matrices, and in the same order what else is needed to read each."""
    tensors: dict[str, Tensor] = {}
    described = []
    for name, held in weights.items():
        parts, description = held.to_parts()
        described.append({"name": name, **description})
        tensors |= {f"{name}:{key}": value for key, value in parts.items()}
    return tensors, described


def from_stored(tensors: Mapping[str, Tensor], described: Iterable[Fields]) -> dict[str, PackedTensor]:
    """What ``to_stored`` took apart; parts that are missing or do not fit together are an error."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, part = key.rpartition(":")
        parts.setdefault(name, {})[part] = tensor
    found = {}
    for one in described:
        name = one.text("name")
        found[name] = PackedTensor.from_parts(parts.get(name, {}), one.data)
        if len(found[name].shape) != 2:
            raise one.wrong("shape", "two sizes")
    return found
