"""Products of 2:4 weights in int8: the reference against floats, and the GPU against the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.gpu.semi_structured import prune
from sparsebit.numerics import CodeType, Layout, choose_grid
from sparsebit.sparse.int8_linear import Int8Linear


def weight(rows: int = 64, columns: int = 128, dtype: torch.dtype = torch.float32) -> Tensor:
    return prune(torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))).to(dtype)


def snapped(x: Tensor, layout: Layout) -> Tensor:
    """On the int8 grid of each row."""
    grid = choose_grid(x.amin(-1).flatten(), x.amax(-1).flatten(), CodeType("int", 8), layout)
    return grid.snap(x).double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_are_those_of_the_rounded_numbers(dtype: torch.dtype) -> None:
    w, bias = weight(), torch.randn(64).to(dtype)
    x = torch.randn(3, 5, 128, generator=torch.Generator().manual_seed(1)).to(dtype)
    y = Int8Linear(w, bias)(x)
    vectors = snapped(x.float(), Layout(kind="token"))
    expected = vectors @ snapped(w, Layout(kind="channel", axes=(0,))).T + bias.double()
    assert y.shape == (3, 5, 64) and y.dtype == dtype and y.is_contiguous()
    close = 1e-5 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), expected, rtol=close, atol=close)


def test_the_weight_stays_2_4_and_counts_once() -> None:
    layer = Int8Linear(weight(), None)
    assert layer.codes.dtype == torch.int8 and torch.equal(layer.codes == 0, weight() == 0)
    assert [name for name, _ in layer.named_parameters()] == []


def test_no_vectors_zeros_and_numbers_that_are_not_finite() -> None:
    layer = Int8Linear(weight(), torch.ones(64))
    assert layer(torch.zeros(0, 128)).shape == (0, 64)
    assert torch.equal(layer(torch.zeros(2, 128)), torch.ones(2, 64))
    x = torch.randn(3, 128)
    x[0, 3], x[1, 5] = torch.nan, -torch.inf
    y = layer(x)
    assert y[:2].isnan().all() and y[2].isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_it_compiles_as_one_graph(backend: str) -> None:
    layer, x = Int8Linear(weight(), torch.randn(64)), torch.randn(5, 128)
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x), layer(x), rtol=1e-5, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("vectors", [0, 1, 17, 64, 500])
def test_the_kernel_equals_the_reference(vectors: int) -> None:
    # With 127 / 16 in each row and vector, scales are 1 / 16 on every device. A GPU divides by a number as it
    # multiplies by its reciprocal; where a scale differs in its last bit, a number in the middle is rounded to the
    # other side.
    w, bias = weight(256, 512, torch.bfloat16), torch.randn(256).bfloat16()
    w[:, :4] = torch.tensor([127 / 16, 0, 0, 0])
    x = torch.rand(vectors, 512).bfloat16()
    x[:, 3] = 127 / 16
    y = Int8Linear(w.cuda(), bias.cuda())(x.cuda())
    torch.testing.assert_close(y.cpu(), Int8Linear(w, bias)(x), rtol=0.01, atol=0.01)
