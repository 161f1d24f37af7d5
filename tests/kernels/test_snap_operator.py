"""A quantizer as one operator for compilers: its numbers on any device, and what is declared about it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.gpu import compiled
from benchmarks.gpu.fake_quant import LOWERED, compare_lowered, draw_cases
from sparsebit.kernels.snap_operator import snap_operator

# torch's own, where a compiler looks at a tensor that is computed.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
FIXED = (None, -8.0, 7.0, 0.5)  # no tensor as factor, both ends, a factor


def draw(*shape: int, learned: bool = True, **options: Any) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(*shape, requires_grad=True, **options)
    scale = torch.rand(shape[1], device=options.get("device")) + 0.1
    return (
        x,
        scale.requires_grad_(learned),
        torch.randint(-2, 3, (shape[1],), device=options.get("device")).float(),
    )


@pytest.mark.parametrize(
    "case", [*LOWERED, *draw_cases(8, seed=5)], ids=lambda c: f"{c.shape}-{c.layout}-{c.dtype}"
)
def test_it_has_the_numbers_and_gradients_of_the_reference(case: Any) -> None:
    assert compare_lowered(case, "cpu", backend="aot_eager") is None


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("learned", [False, True])
def test_it_declares_what_it_does(device: str, learned: bool) -> None:
    inputs = draw(4, 8, learned=learned, device=device)
    torch.library.opcheck(torch.ops.sparsebit.snap, (*inputs, *FIXED, 1, learned))


def test_shapes_are_known_without_running() -> None:
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
        scale, zero_point = (torch.ones(3, device="cuda") for _ in range(2))
        y = snap_operator(x, scale, zero_point, -8, 7, axis=1)
        assert (y.shape, y.dtype, y.stride()) == (x.shape, x.dtype, x.stride())
        operator = torch.ops.sparsebit.snap_backward
        to_x, *sums = operator(y, x, scale, zero_point, *FIXED, 1, True, True)
        assert to_x.stride() == x.stride() and to_x.dtype == x.dtype
        assert [tuple(total.shape) for total in sums] == [(3,), (3,)]


@pytest.mark.parametrize("axis", [1, -1])
def test_the_sign_of_a_scale_is_that_of_its_gradient(axis: int) -> None:
    found = []
    for sign in (1.0, -1.0):
        x, scale, zero_point = draw(3, 4, 5)
        size = (1, 4, 1) if axis < 0 else (4,)
        own = (scale.detach() * sign).view(size).requires_grad_()
        y = snap_operator(x, own, zero_point.view(size), -8, 7, 1.0, axis, magnitude=True)
        found.append([y, *torch.autograd.grad(y.square().sum(), (x, own))])
    (y, to_x, to_scale), (same, as_before, turned) = found
    assert torch.equal(y, same) and torch.equal(to_x, as_before) and torch.equal(to_scale, -turned)


@pytest.mark.parametrize("kind", ["lsq", "uniform", "lsq+", "pact"])
def test_a_compiled_model_has_one_for_each_quantizer(kind: str) -> None:
    """And the results of the model as it is, as one graph that is compiled once or twice in four steps."""
    case = compiled.Case(kind, device="cpu", backend="aot_eager")
    assert compiled.compare(case) is None
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    model, x = compiled.make(case)
    torch._dynamo.reset()
    torch.compile(model, backend=keep, fullgraph=True)(x)
    (graph,) = graphs
    found = [node for node in graph.graph.nodes if "sparsebit.snap" in str(node.target)]
    composed = 3 if kind == "pact" else 0  # its activations learn a bound, and no scale
    assert len(found) == len(model.quantizers) - composed


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_needs_no_operator_of_ours(strict: bool) -> None:
    model, x = compiled.make(compiled.Case(device="cpu", training=False))
    program = torch.export.export(model, (x,), strict=strict)
    assert not [node for node in program.graph.nodes if "sparsebit" in str(node.target)]


def test_batches_of_another_size_do_not_need_another_operator() -> None:
    def run(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        return snap_operator(x, scale, zero_point, -8, 7, axis=1)

    torch._dynamo.reset()
    dynamic = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch in (3, 5, 8):
            inputs = draw(batch, 4, 5)
            assert torch.equal(dynamic(*inputs), run(*inputs))
