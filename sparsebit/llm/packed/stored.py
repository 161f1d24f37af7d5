"""Packed weights as tensors and plain data, for folders of JSON and safetensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.llm.packed.weight import PackedWeight
from sparsebit.numerics import CodeType, Grid, Layout
from sparsebit.numerics.packing import packed_length


def to_parts(held: PackedWeight) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a packed weight, and what else is needed to read them."""
    grid, layout = held.grid, held.grid.layout
    tensors = {"packed": held.packed, "scale": grid.scale}
    if not grid.code.symmetric:
        tensors["zero_point"] = grid.zero_point.to(torch.int16)
    return tensors, {"code": str(grid.code), "group_size": layout.group_size, "shape": list(held.shape)}


def from_parts(tensors: Mapping[str, Tensor], said: Mapping[str, Any], where: str = "") -> PackedWeight:
    """The packed weight that ``to_parts`` took apart, after checking that its parts fit together."""
    try:
        rows, columns = (int(size) for size in said["shape"])
        code = CodeType.parse(said["code"])
        size = said["group_size"]
        layout = (
            Layout(kind="channel", axes=(0,))
            if size is None
            else Layout(kind="group", axes=(0,), input_axis=1, group_size=int(size))
        )
        packed, scale = tensors["packed"], tensors["scale"]
        zero_point = tensors.get("zero_point", torch.zeros(scale.shape)).float()
    except (KeyError, TypeError, ValueError) as error:
        raise SparsebitError("a packed weight cannot be read", where=where, got=repr(error)) from None
    count = rows * (1 if size is None else columns // int(size))
    fits = (
        packed.dtype == torch.uint8
        and tuple(packed.shape) == (rows, packed_length(columns, code.bits))
        and scale.shape == zero_point.shape == (count,)
        and scale.is_floating_point()
        and bool(torch.isfinite(scale).all())
        and bool((scale != 0).all())
    )
    if not fits or (code.kind != "full" and bool((scale < 0).any())):
        raise SparsebitError("the parts of a packed weight do not fit together", where=where)
    return PackedWeight(packed, Grid(scale, zero_point, code, layout), (rows, columns))
