"""Tensors held as codes: bit for bit what snapping gives, in the bytes they should take, through files and back."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.numerics import CodeType, Layout, choose_grid
from sparsebit.numerics.layout import row_count
from sparsebit.numerics.packed import PackedTensor
from tests.numerics.test_grid import LAYOUTS

NAMES = ("int2", "int3", "uint4", "int4_full", "int8", "uint8", "int16", "fp8_e4m3", "nf4")
CODES = [CodeType.parse(name) for name in NAMES]


def packed(
    case: str, code: CodeType, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, PackedTensor]:
    shape, layout = LAYOUTS[case]
    generator = torch.Generator().manual_seed(len(case))
    x = torch.randn(shape, generator=generator).to(dtype)
    order = torch.randperm(8, generator=generator) if case == "act order" else None
    rows = row_count(shape, layout)
    lo, hi = -torch.rand(rows, generator=generator), torch.rand(rows, generator=generator)
    grid = choose_grid(lo, hi, code, layout, scale_dtype=torch.float16, order=order)
    return x, PackedTensor.of(x, grid)


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("case", LAYOUTS)
def test_numbers_are_those_of_snapping_and_survive_files(case: str, code: CodeType) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x, held = packed(case, code, dtype)
        assert torch.equal(held.numbers(), held.grid.snap(x))
        tensors, description = held.to_parts()
        again = PackedTensor.from_parts(tensors, json.loads(json.dumps(description)))
        assert torch.equal(again.numbers(), held.numbers())
        assert again.dtype == dtype and again.grid.layout == held.grid.layout
        assert ("zero_point" in tensors) == (code.kind == "uint")
        assert (again.grid.order is not None) == (case == "act order")


def test_bytes_are_what_the_bits_take() -> None:
    x = torch.randn(64, 32, 3, 3)
    for bits, expected in ((2, 64 * 72), (3, 64 * 108), (4, 64 * 144), (8, 64 * 288)):
        grid = choose_grid(
            x.amin((1, 2, 3)), x.amax((1, 2, 3)), CodeType("int", bits), Layout(kind="channel")
        )
        assert PackedTensor.of(x, grid).bits.numel() == expected


@pytest.mark.parametrize("shape", [(), (5,), (0, 3), (3, 0)])
def test_small_shapes(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    held = PackedTensor.of(x, choose_grid(torch.zeros(1), torch.ones(1), CodeType("uint", 3)))
    assert torch.equal(held.numbers(), x)


def damaged() -> dict[str, Any]:
    tensors, description = packed("group", CodeType("uint", 4))[1].to_parts()

    def but(**changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        new, text = dict(tensors), copy.deepcopy(description)
        for name, value in changes.items():
            (new if name in ("bits", "scale", "zero_point", "order") else text)[name] = value
        return new, text

    scale = tensors["scale"]
    return {
        "nan": but(scale=scale * torch.nan),
        "zero": but(scale=scale * 0),
        "sign": but(scale=-scale),
        "integers": but(scale=scale.int()),
        "too few scales": but(scale=scale[:3], zero_point=tensors["zero_point"][:3]),
        "zero point": but(zero_point=tensors["zero_point"] + 20),
        "bits": but(bits=tensors["bits"][:, :1]),
        "floats": but(bits=tensors["bits"].float()),
        "order": but(order=torch.zeros(6, dtype=torch.int32)),
        "type": but(type="int99"),
        "unknown type": but(type=["int4"]),
        "shape": but(shape=[4, -6]),
        "shape of texts": but(shape=["4", 6]),
        "dtype": but(dtype="int8"),
        "layout": but(layout={"kind": "group", "evil": 1}),
        "layout of a list": but(layout=[1]),
        "axes": but(layout={**description["layout"], "axes": ["0"]}),
        "groups": but(layout={**description["layout"], "groups": 0, "axes": [1], "input_axis": 0}),
        "channels that groups do not divide": but(layout={**description["layout"], "groups": 3, "axes": [1]}),
        "nothing": ({}, {}),
    }


@pytest.mark.parametrize("case", damaged())
def test_damage_is_refused(case: str) -> None:
    with pytest.raises(SparsebitError):
        PackedTensor.from_parts(*damaged()[case])
