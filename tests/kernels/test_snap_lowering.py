"""What inductor makes of a quantizer: the same numbers, inside of the loops around it, and as an opaque operator."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu import compiled
from benchmarks.gpu.fake_quant import LAYOUTS, LOWERED
from sparsebit.kernels import snap_lowering
from sparsebit.kernels.snap_operator import snap_operator
from sparsebit.numerics import CodeType
from sparsebit.numerics.layout import align
from sparsebit.numerics.snapping import snap, snap_plain

# torch's own, where a compiler looks at a tensor that is computed.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
LOOPS = re.compile(r"^cpp_fused_\w+ = ", re.MULTILINE)


def test_the_torch_that_is_installed_has_what_it_needs() -> None:
    import torch._inductor.graph
    from torch._functorch.partitioners import get_default_op_list
    from torch._inductor.lowering import lowerings

    assert snap_lowering.register_where_used()
    operators = torch.ops.sparsebit
    assert operators.snap.default in lowerings and operators.snap_backward.default in lowerings
    assert {operators.snap, operators.snap_backward} <= set(get_default_op_list().fusible_ops)


def test_inductor_is_loaded_by_compilers_alone() -> None:
    code = """
import sys, torch, sparsebit
from sparsebit.kernels import snap_lowering, snap_operator
torch.ops.sparsebit.snap(torch.ones(2, device="meta"), torch.ones(1), torch.zeros(1), None, 0.0, 1.0, 1.0, -1, False)
assert not snap_lowering.register_where_used()
assert not [name for name in sys.modules if name.startswith("torch._inductor")]
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_name_that_torch_no_longer_has_leaves_the_operators_opaque(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import lowering

    monkeypatch.delattr(lowering, "make_pointwise")
    assert not snap_lowering._register.__wrapped__()


def run_all(compute: Callable[..., list[Tensor]]) -> list[Tensor]:
    """Every case that is timed on a GPU too, in one graph, and one with a scale below zero."""
    leaves: list[Tensor] = []
    grads: list[Tensor] = []
    codes: list[Any] = []
    factors: list[Any] = []
    for case in LOWERED:
        x, grad, scale, zero_point = (t.requires_grad_() for t in case.make("cpu"))
        leaves += [x, scale, zero_point]
        grads.append(grad.detach())
        codes.append((CodeType.parse(case.code), LAYOUTS[case.layout]))
        factors.append(torch.full((1,), 0.5) if isinstance(case.factor, str) else case.factor)
    outputs = compute(leaves, codes, factors)
    torch.autograd.backward(outputs, grads)
    return [*outputs, *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def snap_all(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    def compute(leaves: list[Tensor], codes: list[Any], factors: list[Any]) -> list[Tensor]:
        outputs = []
        for index, ((code, layout), factor) in enumerate(zip(codes, factors, strict=True)):
            x, scale, zero_point = leaves[3 * index : 3 * index + 3]
            view, (scale, zero_point) = align(x, layout, scale, zero_point)
            outputs.append(function(view, scale, zero_point, code, factor).reshape(x.shape))
        return outputs

    return compute


@pytest.mark.slow
def test_numbers_and_gradients_are_those_of_the_reference() -> None:
    torch._dynamo.reset()
    expected = run_all(snap_all(snap_plain))
    found = run_all(torch.compile(snap_all(snap), fullgraph=True, dynamic=False))
    sums = {3 * index + offset for index in range(len(LOWERED)) for offset in (1, 2)}
    for index, (a, b) in enumerate(zip(found, expected, strict=True)):
        if index - len(LOWERED) in sums:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.abs().max()))
        else:
            assert torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride(), index


class Block(nn.Module):
    """A quantizer between batch norm and a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, bias=False)
        self.scale = nn.Parameter(torch.tensor([-0.25]))  # below zero: it counts by its magnitude

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(x))
        return self.conv(snap_operator(y, self.scale, torch.zeros(1), 0, 15, 0.5, magnitude=True))


def compare_codes() -> list[str]:
    """The code that inductor makes of a block, forward and backward; its results are those of the block itself."""
    from torch._inductor.utils import fresh_cache, run_and_get_code

    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 8, 6, 6, requires_grad=True)
    leaves = [x, *block.parameters()]

    def step(function: Callable[[Tensor], Tensor]) -> list[Tensor]:
        y = function(x)
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    torch._dynamo.reset()
    with fresh_cache():
        found, codes = run_and_get_code(step, torch.compile(block, fullgraph=True))
    for a, b in zip(found, step(block), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert len(codes) == 2
    return codes


@pytest.mark.slow
def test_it_is_computed_in_the_loop_of_what_is_before_it() -> None:
    forward, backward = compare_codes()
    assert "torch.ops.sparsebit" not in forward + backward
    assert forward.count("extern_kernels.convolution(") == 1
    # Statistics of batch norm, and all that is between it and the convolution.
    assert len(LOOPS.findall(forward)) <= 2


@pytest.mark.slow
def test_opaque_operators_give_the_same_results() -> None:
    code = """
import sys
sys.path.insert(0, "")
from sparsebit.kernels import snap_lowering
from tests.kernels.test_snap_lowering import compare_codes

snap_lowering.USED = False
forward, backward = compare_codes()
assert "torch.ops.sparsebit.snap.default" in forward and "torch.ops.sparsebit.snap_backward.default" in backward
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lsq", "lsq+"])
def test_training_is_the_same_and_compiled_once(kind: str) -> None:
    assert compiled.compare(compiled.Case(kind, device="cpu")) is None
