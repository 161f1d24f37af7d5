"""Products with packed weights: the kernels against the unpacked weight, and gradients that keep nothing unpacked."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sparsebit.llm.packed.linear import PackedLinear
from sparsebit.llm.packed.product import CPU_VECTORS, CpuWeight
from sparsebit.numerics import CodeType, Layout, choose_grid
from sparsebit.numerics.packed import PackedTensor


def packed(code: str, *, rows: int = 48, columns: int = 256, size: int | None = 32) -> PackedTensor:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    layout = (
        Layout(kind="channel", axes=(0,))
        if size is None
        else Layout(kind="group", axes=(0,), input_axis=1, group_size=size)
    )
    groups = weight.reshape(-1, size or columns)
    grid = choose_grid(
        groups.amin(1), groups.amax(1), CodeType.parse(code), layout, scale_dtype=torch.float16
    )
    return PackedTensor.of(weight, grid)


@pytest.mark.parametrize(
    ("code", "size"), [("int4_full", 32), ("int4", None), ("int3_full", 128), ("int2", 64), ("uint4", 32)]
)
@pytest.mark.parametrize("vectors", [1, 5])
def test_the_cpu_kernel_is_as_exact_as_bfloat16(code: str, size: int | None, vectors: int) -> None:
    held = packed(code, size=size)
    kernel = CpuWeight.of(held)
    assert kernel is not None
    x = torch.randn(2, vectors, 256, generator=torch.Generator().manual_seed(1)).bfloat16()
    wanted = F.linear(x.double(), held.numbers().double())
    found, reference = kernel.multiply(x).double(), F.linear(x, held.numbers(torch.bfloat16)).double()
    assert found.shape == wanted.shape
    assert (found - wanted).norm() < 1.5 * (reference - wanted).norm() + 1e-9


@pytest.mark.parametrize(
    ("code", "rows", "size"), [("int8", 48, 32), ("int4", 40, 32), ("int4", 48, 16), ("nf4", 48, 32)]
)
def test_grids_without_a_kernel_are_unpacked(code: str, rows: int, size: int) -> None:
    held = packed(code, rows=rows, size=size)
    assert CpuWeight.of(held) is None
    x = torch.randn(1, 256).bfloat16()
    assert torch.equal(PackedLinear(held, None)(x), F.linear(x, held.numbers(torch.bfloat16)))


def test_float32_and_many_vectors_use_the_exact_weight() -> None:
    held = packed("int4_full")
    layer = PackedLinear(held, torch.ones(48))
    x = torch.randn(3, 256)
    assert torch.equal(layer(x), F.linear(x, held.numbers()) + 1)
    many = torch.randn(CPU_VECTORS + 1, 256).bfloat16()
    assert torch.equal(layer(many), F.linear(many, held.numbers(torch.bfloat16)) + 1)


@pytest.mark.parametrize("assign", [False, True])
def test_a_new_weight_is_used_at_once(assign: bool) -> None:
    layer, other = PackedLinear(packed("int4"), None), PackedLinear(packed("int4"), None)
    other.scale.mul_(2)
    x = torch.randn(1, 256).bfloat16()
    before = layer(x)
    layer.load_state_dict(other.state_dict(), assign=assign)
    assert torch.equal(layer(x), other(x)) and not torch.equal(layer(x), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_those_of_the_unpacked_weight(dtype: torch.dtype) -> None:
    held = packed("int4_full")
    x = torch.randn(4, 256).to(dtype).requires_grad_()
    PackedLinear(held, None)(x).square().sum().backward()
    y = F.linear(x.detach(), held.numbers(dtype))
    wanted = (2 * y) @ held.numbers(dtype)
    assert x.grad is not None and x.grad.dtype == dtype
    assert (x.grad - wanted).norm() < (1e-6 if dtype == torch.float32 else 2e-2) * wanted.norm()
