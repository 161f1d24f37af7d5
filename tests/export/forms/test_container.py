"""Which ONNX type holds the quantized values of a tensor."""

from __future__ import annotations

import pytest
import torch

from sparsebit.export.forms.container import Container, container_of, needed_opset
from sparsebit.export.translate.marker import Marked
from sparsebit.numerics import CodeType, Grid, Layout


def marked(side: str, bits: int, *, symmetric: bool = True, dtype: str = "int", group: int = 0) -> Marked:
    code = CodeType.of(bits, symmetric, dtype)  # type: ignore[arg-type]
    layout = Layout(kind="group", axes=(0,), input_axis=1, group_size=group) if group else Layout()
    scale = torch.ones(8 if group else 1)
    return Marked("t", side, bits, Grid(scale, torch.zeros_like(scale), code, layout), (4, 8))


@pytest.mark.parametrize(
    ("tensor", "unsigned", "opset", "expected"),
    [
        (marked("W", 8), True, 20, Container("INT8")),
        (marked("W", 4), True, 21, Container("INT4")),
        (marked("W", 2), True, 24, Container("INT8")),
        (marked("W", 2), True, 25, Container("INT2")),
        (marked("W", 4, symmetric=False), False, 21, Container("UINT4")),
        (marked("A", 8), False, 20, Container("INT8")),
        (marked("A", 8), True, 20, Container("UINT8", 128)),
        (marked("A", 4), True, 20, Container("UINT8", 128, (120, 135))),
        (marked("A", 4, symmetric=False), True, 20, Container("UINT8", 0, (0, 15))),
        (marked("A", 12, symmetric=False), True, 21, Container("UINT16", 0, (0, 4095))),
        (marked("W", 8, dtype="fp8_e4m3"), True, 19, Container("FLOAT8E4M3FN", unpacked=True)),
    ],
)
def test_the_smallest_type_that_fits(tensor: Marked, unsigned: bool, opset: int, expected: Container) -> None:
    assert container_of(tensor, unsigned_activations=unsigned, opset=opset) == expected


@pytest.mark.parametrize(
    ("tensor", "opset"),
    [(marked("W", 8), 13), (marked("W", 4), 21), (marked("W", 8, group=2), 21), (marked("A", 12), 21)],
)
def test_the_lowest_opset_that_has_the_type(tensor: Marked, opset: int) -> None:
    assert needed_opset(tensor) == opset
