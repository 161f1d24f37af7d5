"""Linear layers with compressed 2:4 weights: the reference, gradients that are refused, and the GPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.gpu.semi_structured import prune
from sparsebit.errors import SparsebitError
from sparsebit.sparse.compressed_linear import CompressedLinear
from sparsebit.sparse.int8_linear import Int8Linear

KINDS = [CompressedLinear, Int8Linear]


@pytest.mark.parametrize("kind", KINDS)
def test_a_backward_pass_is_refused(kind: type[CompressedLinear]) -> None:
    """Without an error, the layers before it would be trained on what other paths pass back to them."""
    first, layer = nn.Linear(32, 32), kind(prune(torch.randn(32, 32)), None)
    y = first(torch.randn(3, 32))
    with torch.no_grad():
        expected = layer(input=y)  # as nn.Linear is called
    loss = layer(y) + y
    assert torch.equal(loss - y, (expected + y) - y)
    with pytest.raises(SparsebitError, match="compute no gradients"):
        loss.sum().backward()


@pytest.mark.slow
def test_the_algorithm_of_the_nearest_number_of_vectors() -> None:
    layer = CompressedLinear(torch.ones(4, 4), None)
    assert layer.algorithm_for(3) == 0
    layer.algorithms = {8: 5, 512: 2}
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + layer.algorithm_for(len(x)), fullgraph=True, backend="eager")
    for vectors, expected in ((1, 5), (16, 5), (700, 2), (259, 5), (261, 2)):
        assert layer.algorithm_for(vectors) == expected
        assert compiled(torch.zeros(vectors, 2)).eq(expected).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_compressed_weight_keeps_its_dtype_and_device(kind: type[CompressedLinear]) -> None:
    """torch keeps positions among the values, so another dtype would multiply by garbage."""
    dense = kind(prune(torch.randn(32, 32)), None)
    x = torch.randn(3, 32) * 100
    torch.testing.assert_close(dense.half()(x.half()).float(), dense.float()(x), rtol=0.05, atol=10)
    model = nn.Sequential(kind(prune(torch.randn(32, 32)).bfloat16(), None)).bfloat16()
    model[0].is_compressed = True
    held = model[0].codes
    with pytest.raises(SparsebitError, match="cannot change its dtype or leave the GPU"):
        model.to("meta")
    assert model[0].codes is held and model[0].to(torch.bfloat16) is model[0]


@pytest.mark.parametrize("kind", KINDS)
def test_results_in_autocast_have_its_dtype_as_of_a_dense_layer(kind: type[CompressedLinear]) -> None:
    layer, x = kind(prune(torch.randn(32, 32)).bfloat16(), torch.randn(32).bfloat16()), torch.randn(3, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("vectors", [0, 1, 8, 13, 500])
def test_products_on_a_gpu_with_every_algorithm(vectors: int, dtype: torch.dtype) -> None:
    w = prune(torch.randn(256, 512, device="cuda")).to(dtype)
    bias, x = (
        torch.randn(256, device="cuda", dtype=dtype),
        torch.randn(2, vectors, 512, device="cuda", dtype=dtype),
    )
    layer = CompressedLinear(w, bias)
    for algorithm in range(10):
        layer.algorithms = {vectors: algorithm}
        y = layer(x)
        assert y.is_contiguous() and y.dtype == dtype
        torch.testing.assert_close(y, F.linear(x, w, bias), rtol=0.02, atol=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_it_compiles_as_one_graph_on_a_gpu(kind: type[CompressedLinear]) -> None:
    w = prune(torch.randn(256, 512, device="cuda")).bfloat16()
    layer = kind(w, torch.randn(256, device="cuda").bfloat16())
    layer.algorithms = {8: 1, 512: 0}
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        for vectors in (16, 3, 700):
            x = torch.randn(vectors, 512, device="cuda").bfloat16()
            torch.testing.assert_close(compiled(x), layer(x), rtol=0.02, atol=0.3)
