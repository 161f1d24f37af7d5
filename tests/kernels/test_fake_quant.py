"""Fused fake-quantization against ``numerics.snapping``: on the GPU, and what is declared about it on any machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.gpu import compiled
from benchmarks.gpu.fake_quant import Case, compare, compare_compiled, draw_cases
from sparsebit.kernels import fake_quant
from sparsebit.kernels.fake_quant import snap_fused
from sparsebit.numerics import CodeType, Grid, snapping


@pytest.mark.gpu
@pytest.mark.parametrize("case", draw_cases(60, seed=2), ids=lambda case: f"{case.shape}-{case.layout}")
def test_kernels_equal_the_reference(case: Case) -> None:
    assert compare(case, "cuda") in (None, "not covered")


@pytest.mark.gpu
def test_nan_and_infinity_end_as_in_the_reference() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, -0.0, 2.5, 3.5])
    expected = Grid(torch.ones(1), torch.zeros(1), CodeType("int", 4)).snap(x)
    found = snap_fused(x.cuda(), torch.ones(1, device="cuda"), torch.zeros(1, device="cuda"), -8, 7)
    assert found is not None
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.gpu
def test_the_operators_declare_what_they_do() -> None:
    x = torch.randn(4, 8, device="cuda", requires_grad=True)
    scale, zero_point = torch.ones(4, device="cuda", requires_grad=True), torch.zeros(4, device="cuda")
    arguments = (x, scale, zero_point, None, -8.0, 7.0, 1.0, 4, 8, 4, False, False)
    torch.library.opcheck(torch.ops.sparsebit.snap, arguments)


@pytest.mark.gpu
def test_compiled_without_a_graph_break() -> None:
    assert compare_compiled() is None


def test_other_devices_and_dtypes_are_left_to_the_reference() -> None:
    assert snap_fused(torch.ones(3), torch.ones(1), torch.zeros(1), -8, 7) is None


def test_shapes_are_known_without_running(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_quant, "AVAILABLE", True)
    with FakeTensorMode():
        x = torch.empty(2, 3, 4, 5, device="cuda", dtype=torch.bfloat16)
        x = x.to(memory_format=torch.channels_last)
        scale, zero_point = (torch.ones(1, 3, 1, 1, device="cuda") for _ in range(2))
        y = snap_fused(x, scale, zero_point, -8, 7)
        assert y is not None and y.shape == x.shape and y.dtype == x.dtype and y.stride() == x.stride()
        settings = (None, -8.0, 7.0, 1.0, 40, 3, 3, True, False)
        to_x, to_scale, to_zero_point = torch.ops.sparsebit.snap_backward(
            y, x, scale, zero_point, *settings, True
        )
        assert to_x.stride() == x.stride() and to_x.dtype == x.dtype
        assert to_scale.shape == to_zero_point.shape == (1, 3, 1, 1)
        assert snap_fused(x.double(), scale, zero_point, -8, 7) is None


def rows_of(x: Tensor, scale: Tensor, zero_point: Tensor, settings: tuple[Any, ...]) -> tuple[Tensor, ...]:
    """Memory as a matrix, and its scales and bounds with as many rows or columns."""
    _, low, high, _, rows, width, channels, by_column, magnitude = settings
    scale = scale.abs() if magnitude else scale
    s, z = (
        t[None, :] if by_column else t.reshape(channels).repeat(rows // channels)[:, None]
        for t in (scale, zero_point)
    )
    return x.as_strided((rows, width), (width, 1)), s, low - z, high - z


def plain_forward(x: Tensor, scale: Tensor, zero_point: Tensor, *settings: Any) -> Tensor:
    flat, s, low, high = rows_of(x, scale, zero_point, settings)
    y = torch.empty_like(x)
    y.as_strided(flat.shape, flat.stride()).copy_((flat / s).round().clamp(low, high) * s)
    return y


def plain_backward(
    grad: Tensor, x: Tensor, scale: Tensor, zero_point: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    *settings, learned = rest
    flat, s, low, high = rows_of(x, scale, zero_point, tuple(settings))
    grad = torch.empty_like(x).copy_(grad)
    given = grad.as_strided(flat.shape, flat.stride())
    v = flat / s
    clipped = v.round().clamp(low, high)
    inside = v.round() == clipped
    to_x = torch.empty_like(x)
    to_x.as_strided(flat.shape, flat.stride()).copy_(given * inside)
    if not learned:
        return to_x, scale.new_empty(0), scale.new_empty(0)
    factor, _, _, number, _, _, channels, by_column, magnitude = settings
    slope = given * torch.where(inside, clipped - v, clipped)
    sums = slope.sum(0) if by_column else slope.sum(1).reshape(-1, channels).sum(0)
    sums = sums * number * (1 if factor is None else factor)
    sign = torch.where(scale < 0, -1.0, 1.0) if magnitude else 1.0
    return to_x, sums.reshape(scale.shape) * sign, torch.zeros_like(scale)


@pytest.fixture
def operator_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The operator with a plain implementation, used by compilers as on a GPU; gives its calls."""
    calls: list[str] = []

    def forward(*arguments: Any) -> Tensor:
        calls.append("snap")
        return plain_forward(*arguments)

    def backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
        calls.append("snap_backward")
        return plain_backward(*arguments)

    monkeypatch.setattr(fake_quant, "AVAILABLE", True)
    monkeypatch.setattr(snapping, "operator_runs_on", lambda x: torch.compiler.is_compiling())
    library = torch.library.Library("sparsebit", "IMPL")
    library.impl("snap", forward, "CPU")
    library.impl("snap_backward", backward, "CPU")
    yield calls
    library._destroy()
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "case",
    [
        compiled.Case("lsq", device="cpu", backend="aot_eager"),
        compiled.Case("uniform", device="cpu", backend="aot_eager", activation_scheme="per-channel-affine"),
    ],
    ids=lambda case: case.kind,
)
def test_a_compiler_is_given_one_operator_for_each_quantizer(
    case: compiled.Case, operator_on_the_cpu: list[str]
) -> None:
    assert compiled.compare(case) is None
    quantizers = len(compiled.make(case)[0].quantizers)
    assert operator_on_the_cpu.count("snap") == 4 * quantizers  # in four steps
    # The input of the model has no gradient; with a learned scale its quantizer has one.
    assert operator_on_the_cpu.count("snap_backward") == 4 * (quantizers - (case.kind == "uniform"))
