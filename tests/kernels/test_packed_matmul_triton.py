"""Products with packed weights: the kernels themselves, on the CPU, and compiled for devices that are not here."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu.packed_matmul import Case, kernel_arguments
from sparsebit.kernels import packed_matmul
from tests.kernels.compiled import Device
from tests.kernels.interpreter import needs_triton, require_equal_to_reference


@needs_triton
def test_kernels_equal_their_references() -> None:
    require_equal_to_reference("packed_matmul")


@pytest.mark.parametrize(
    ("capability", "code", "group_size", "vectors", "kernels"),
    [
        (80, "uint4", 32, 8, ["arrange", "multiply"]),  # scaled one by one, in bfloat16
        (89, "uint3", 64, 16, ["arrange", "multiply"]),  # fewer stages than in the table
        (80, "int8", 64, 1, ["multiply_vector"]),
        (120, "int4", 128, 16, ["arrange", "multiply"]),
    ],
)
def test_every_device_has_a_way_to_multiply(
    monkeypatch: pytest.MonkeyPatch,
    capability: int,
    code: str,
    group_size: int,
    vectors: int,
    kernels: list[str],
) -> None:
    pytest.importorskip("triton")
    device = Device(capability)
    monkeypatch.setattr(packed_matmul, "launch", device.launch)
    monkeypatch.setattr(packed_matmul, "_stages", {})
    x, packed, grid = Case(64, 256, vectors, code, group_size, dtype=torch.bfloat16).make("cpu")
    y = packed_matmul.multiply_packed(x, *kernel_arguments(packed, grid))
    assert y.shape == (vectors, 64) and device.compiled == kernels
