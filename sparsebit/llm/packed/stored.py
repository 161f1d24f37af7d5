"""Packed matrices by name as tensors and plain data, for folders of JSON and safetensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.numerics.layout import row_count
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import packed_length
from sparsebit.storage import ArtifactError, Fields
from sparsebit.storage.typed import from_plain


def to_stored(weights: Mapping[str, PackedTensor]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """The tensors of all matrices, and in the same order the descriptions needed to read them."""
    tensors: dict[str, Tensor] = {}
    described = []
    for name, held in weights.items():
        parts, description = held.to_parts()
        described.append({"name": name, **description})
        tensors |= {f"{name}:{key}": value for key, value in parts.items()}
    return tensors, described


def from_stored(tensors: Mapping[str, Tensor], described: Iterable[Fields]) -> dict[str, PackedTensor]:
    """The matrices that ``to_stored`` wrote; parts that are missing or do not fit together are an error."""
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


def describe_packed(held: PackedTensor) -> dict[str, Any]:
    """What ``packed_like`` needs to allocate a matrix."""
    return held.to_parts()[1] | {"scale_dtype": str(held.grid.scale.dtype).removeprefix("torch.")}


def packed_like(described: Fields) -> PackedTensor:
    """A packed matrix as described, without values: for loaders that fill its buffers."""
    shape = described.value("shape")
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or not all(type(n) is int and 0 < n < 2**31 for n in shape)
    ):
        raise described.wrong("shape", "two sizes")
    try:
        code, layout = CodeType.parse(described.text("type")), from_plain(Layout, described.value("layout"))
        count = row_count(shape, layout)
        scale_dtype = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}[
            described.text("scale_dtype")
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError("a packed layer cannot be read", where=described.where, got=str(error)) from None
    bits = torch.empty(shape[0], packed_length(shape[1], code.bits), dtype=torch.uint8, device="meta")
    scale = torch.empty(count, dtype=scale_dtype, device="meta")
    return PackedTensor(bits, Grid(scale, scale.float(), code, layout), (shape[0], shape[1]), torch.float32)
