"""Packed weights as tensors and plain data, for folders of JSON and safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sparsebit.llm.packed.weight import PackedWeight
from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.numerics.packing import packed_length
from sparsebit.storage import ArtifactError
from sparsebit.storage.fields import Fields


def to_parts(held: PackedWeight) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a packed weight, and what else is needed to read them."""
    grid, layout = held.grid, held.grid.layout
    tensors = {"packed": held.packed, "scale": grid.scale}
    if not grid.code.symmetric:
        tensors["zero_point"] = grid.zero_point.to(torch.int16)
    return tensors, {"code": str(grid.code), "group_size": layout.group_size, "shape": list(held.shape)}


def from_parts(tensors: Mapping[str, Tensor | None], said: Fields) -> PackedWeight:
    """The packed weight that ``to_parts`` took apart, after checking that its parts fit together."""
    shape = said.value("shape")
    if (
        not isinstance(shape, list)
        or len(shape) != 2
        or not all(type(size) is int and size > 0 for size in shape)
    ):
        raise said.wrong("shape", "two sizes")
    rows, columns = shape
    code = CodeType.parse(said.text("code"))
    size = None if said.value("group_size") is None else said.integer("group_size")
    if size is not None and (size < 1 or columns % size):
        raise said.wrong("group_size", f"a divisor of {columns}")
    layout = (
        Layout(kind="channel", axes=(0,))
        if size is None
        else Layout(kind="group", axes=(0,), input_axis=1, group_size=size)
    )
    packed, scale = tensors.get("packed"), tensors.get("scale")
    if packed is None or scale is None:
        raise said.wrong("tensors", "packed and scale")
    given = tensors.get("zero_point")
    zero_point = torch.zeros(scale.shape) if given is None else given.float()
    count = rows * (1 if size is None else columns // size)
    fits = (
        packed.dtype == torch.uint8
        and tuple(packed.shape) == (rows, packed_length(columns, code.bits))
        and scale.shape == zero_point.shape == (count,)
        and scale.is_floating_point()
        and bool(torch.isfinite(scale).all())
        and bool((scale != 0).all())
    )
    if not fits or (code.kind != "full" and bool((scale < 0).any())):
        raise ArtifactError("the parts of a packed weight do not fit together", where=said.where)
    return PackedWeight(packed, Grid(scale, zero_point, code, layout), (rows, columns))
