"""Gradients of a learned grid: against the equations, finite differences, torch's kernels and other ways to snap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from sparsebit.numerics import CodeType, Grid, Layout, choose_grid, snapping
from sparsebit.numerics.layout import row_count, spread
from sparsebit.numerics.snapping import align_grid, matrix_of, snap_composed, snap_plain, snap_tensor

CODES = [
    CodeType.parse(name)
    for name in ("int2", "int8", "uint4", "uint16", "int4_full", "fp8_e4m3", "fp8_e5m2", "nf4")
]
ROWS = [
    Layout(),
    Layout(kind="channel"),
    Layout(kind="channel", axes=(1,)),
    Layout(kind="group", group_size=2),
    Layout(kind="group", group_size=4),  # the last one is shorter
]


def learned(rows: Layout, x: Tensor, *, asymmetric: bool = False, dtype: torch.dtype = torch.float64) -> Grid:
    count = row_count(x.shape, rows)
    scale = torch.linspace(0.2, 0.5, count, dtype=dtype).requires_grad_()
    zero_point = (torch.arange(count) % 5 if asymmetric else torch.zeros(count)).to(dtype).requires_grad_()
    return Grid(scale, zero_point, CodeType("uint" if asymmetric else "int", 3), rows)


def gradients(y: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    return torch.autograd.grad((y * weights).sum(), inputs)


def plain_chain(x: Tensor, grid: Grid) -> Tensor:
    """The same numbers from torch's own operators, with the rounding passed straight through."""
    scale, zero_point = (spread(v, x.shape, grid.layout) for v in (grid.scale, grid.zero_point))
    steps = x / scale
    steps = steps + (steps.round() - steps).detach() + zero_point
    return (steps.clamp(grid.code.low, grid.code.high) - zero_point) * scale


@pytest.mark.parametrize("rows", ROWS, ids=lambda rows: f"{rows.kind}{rows.axes}{rows.group_size or ''}")
@pytest.mark.parametrize("asymmetric", [False, True])
def test_values_and_gradients_are_those_of_the_equations(rows: Layout, asymmetric: bool) -> None:
    x = torch.randn(6, 10, 3, dtype=torch.float64).requires_grad_()
    grid = learned(rows, x, asymmetric=asymmetric)
    got, expected = grid.snap(x, 0.25), plain_chain(x, grid)
    torch.testing.assert_close(got, expected)
    inputs = (x, grid.scale, grid.zero_point)
    for own, other, factor in zip(
        gradients(got, *inputs), gradients(expected, *inputs), (1.0, 0.25, 0.25), strict=True
    ):
        torch.testing.assert_close(own, other * factor)


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_pass_inside_and_stop_outside(code: CodeType, dtype: torch.dtype) -> None:
    x = (2 * torch.randn(4, 1000)).to(dtype).requires_grad_()
    grid = choose_grid(torch.full((4,), -1.0), torch.full((4,), 2.0), code, Layout(kind="channel"))
    y = grid.snap(x)
    assert y.equal(grid.snap(x.detach()))
    gradient = torch.randn(y.shape).to(dtype)
    y.backward(gradient)
    steps = grid.positions(x.detach())
    steps = (steps.round() if code.is_integer else steps) + grid.zero_point[:, None]
    inside = (steps >= code.low) & (steps <= code.high)
    assert inside.any()
    assert not inside.all()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert x.grad.equal(torch.where(inside, gradient, 0))


@pytest.mark.parametrize("code", CODES, ids=str)
def test_learned_scales_see_the_same_numbers(code: CodeType) -> None:
    grid, x = choose_grid(torch.tensor([-0.9]), torch.tensor([2.1]), code), 2 * torch.randn(1000)
    twin = Grid(grid.scale.clone().requires_grad_(), grid.zero_point, code)
    snapped = twin.snap(x)
    assert snapped.equal(grid.snap(x))
    (slope,) = torch.autograd.grad(snapped.sum(), twin.scale)
    v, steps = grid.positions(x), grid.steps(x)
    rounded = (v.round() if code.is_integer else v) + grid.zero_point
    inside = (rounded >= code.low) & (rounded <= code.high)
    torch.testing.assert_close(slope, torch.where(inside, steps - v, steps).sum()[None], rtol=1e-4, atol=1e-3)


def test_only_a_byte_per_element_is_kept_for_the_backward_pass() -> None:
    x = torch.randn(1000).requires_grad_()
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    grid = choose_grid(-torch.ones(1), torch.ones(1), CodeType("int", 4))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        grid.snap(x)
    assert [(tensor.element_size(), tensor.numel()) for tensor in kept] == [(1, 1000)]


def test_second_backward_and_no_grad() -> None:
    x = torch.randn(10).requires_grad_()
    grid = choose_grid(x.detach().min()[None], x.detach().max()[None], CodeType("int", 4))
    with torch.no_grad():
        assert not grid.snap(x).requires_grad
    (first,) = torch.autograd.grad(grid.snap(x).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.equal(torch.full((10,), 2.0))


def native(x: Tensor, grid: Grid, factor: float) -> Tensor:
    function: Callable[..., Tensor]
    rows, ends = grid.layout, (grid.code.low, grid.code.high)
    if rows.kind == "tensor":
        function = torch._fake_quantize_learnable_per_tensor_affine
        return function(x, grid.scale, grid.zero_point, *ends, factor)
    function = torch._fake_quantize_learnable_per_channel_affine
    return function(x, grid.scale, grid.zero_point, rows.axes[0], *ends, factor)


@pytest.mark.parametrize("rows", ROWS[:3], ids=lambda rows: f"{rows.kind}{rows.axes}")
@pytest.mark.parametrize("asymmetric", [False, True])
def test_torch_has_the_same_gradients(rows: Layout, asymmetric: bool) -> None:
    x = torch.randn(6, 10, 5).requires_grad_()
    grid = learned(rows, x, asymmetric=asymmetric, dtype=torch.float32)
    given_ = (x, grid.scale, grid.zero_point)
    own, other = grid.snap(x, 0.1), native(x, grid, 0.1)
    torch.testing.assert_close(own, other)
    for a, b in zip(gradients(own, *given_), gradients(other, *given_), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@given(st.integers(0, 10_000), st.integers(2, 8), st.booleans())
def test_finite_differences_where_there_is_no_rounding(seed: int, bits: int, symmetric: bool) -> None:
    """Outside the range the value is scale * (bound - zero point): smooth in both, and flat in x."""
    generator = torch.Generator().manual_seed(seed)
    code = CodeType.of(bits, symmetric)
    x = torch.randn(2, 7, generator=generator, dtype=torch.float64)
    x = (x.sign() * (2**bits + x.abs())).requires_grad_()  # all of it is clipped
    scale = torch.tensor([0.5], dtype=torch.float64).requires_grad_()
    zero_point = torch.tensor([0.0 if symmetric else 1.0], dtype=torch.float64).requires_grad_()

    def function(*values: Tensor) -> Tensor:
        return Grid(values[1], values[2], code).snap(values[0])

    assert torch.autograd.gradcheck(function, (x, scale, zero_point))


@given(st.integers(0, 10_000))
def test_inside_the_step_follows_the_residue(seed: int) -> None:
    """d/ds = round(v) - v: what a finite difference gives for s * v_round with the code held, plus straight through."""
    x = (torch.rand(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 0.5) * 3
    scale = torch.tensor([0.4], dtype=torch.float64).requires_grad_()
    y = Grid(scale, torch.zeros(1), CodeType("int", 4)).snap(x)
    (slope,) = torch.autograd.grad(y.sum(), scale)
    v = x / 0.4
    torch.testing.assert_close(slope, (v.round() - v).sum()[None])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    x = torch.randn(64, 8).to(dtype).requires_grad_()
    grid = learned(Layout(kind="channel", axes=(1,)), x, dtype=torch.float32)
    y, reference = grid.snap(x), grid.snap(x.float())
    assert y.dtype == dtype and torch.equal(y, reference.to(dtype))
    y.float().sum().backward()
    assert x.grad is not None and x.grad.dtype == dtype
    assert grid.scale.grad is not None and grid.scale.grad.dtype == torch.float32


def test_only_what_is_asked_for_is_computed() -> None:
    x = torch.randn(5)
    scale = torch.ones(1).requires_grad_()
    y = Grid(scale, torch.zeros(1), CodeType("int", 2)).snap(x, torch.tensor([0.5]))
    y.sum().backward()
    assert scale.grad is not None and x.grad is None
    steps = x.round()
    inside = (steps >= -2) & (steps <= 1)
    expected = torch.where(inside, steps - x, steps.clamp(-2, 1)).sum() * 0.5
    torch.testing.assert_close(scale.grad, expected[None])


def test_other_memory_layouts() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    scale = torch.full((1,), 0.3).requires_grad_()
    grid = Grid(scale, torch.zeros(1), CodeType("int", 2))
    y = grid.snap(x)
    own = gradients(y, x, scale)
    z = grid.snap(x.contiguous())
    for a, b in zip(own, gradients(z, x, scale), strict=True):
        torch.testing.assert_close(a, b)


def test_kernels_take_over_where_they_cover_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which path is taken depends on the switch, the device and the type alone; shapes are enough to see it."""
    asked: list[str] = []

    def fused(
        x: Tensor, scale: Tensor, zero_point: Tensor, low: int, high: int, factor: float
    ) -> Tensor | None:
        asked.append(f"{low} {high}")
        return x if x.dtype == torch.float32 else None

    monkeypatch.setattr(snapping, "snap_fused", fused)
    monkeypatch.setattr(snapping, "_PLAIN", (FakeTensor,))
    with FakeTensorMode():
        x, one, zero = (torch.ones(4, device="cuda") for _ in range(3))
        for switch, code in ((True, "int4"), (True, "fp8_e4m3"), (False, "int4")):
            monkeypatch.setattr(snapping, "USE_KERNELS", switch)
            taken = snapping.snap(x, one, zero, CodeType.parse(code)) is x
            assert taken == (switch and code == "int4")
        monkeypatch.setattr(snapping, "USE_KERNELS", True)
        assert (
            snapping.snap(x.double(), one.double(), zero.double(), CodeType("int", 4)).dtype == torch.float64
        )
    assert asked == ["-8 7", "-8 7"]


def leaves(code: CodeType) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 40, generator=generator) * 3
    scale = torch.rand(6, 1, generator=generator) * 0.3 + 0.05
    zero_point = torch.randint(0, 15, (6, 1), generator=generator).float() * (not code.symmetric)
    return [x.requires_grad_(), scale.requires_grad_(), zero_point.requires_grad_(code.is_integer)]


@pytest.mark.parametrize("code", CODES, ids=str)
def test_composed_has_the_numbers_and_gradients_of_the_reference(code: CodeType) -> None:
    found = []
    for snap in (snap_plain, snap_composed):
        inputs = leaves(code)
        y = snap(*inputs, code, 0.25)
        y.backward(torch.linspace(-1, 1, y.numel()).view_as(y))
        found.append([y.detach(), *(leaf.grad for leaf in inputs if leaf.grad is not None)])
    assert torch.equal(found[0][0], found[1][0])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_the_scale_of_an_infinite_value_gets_the_gradient_of_the_bound() -> None:
    scale, x = torch.ones(1, requires_grad=True), torch.tensor([0.25, float("inf"), -float("inf")])
    y = snap_plain(x, scale, torch.zeros(1), CodeType("int", 4))
    (to_scale,) = torch.autograd.grad(y, scale, torch.tensor([1.0, 2.0, 1.0]))
    assert to_scale.item() == -0.25 + 2 * 7 - 8


def test_composed_clips_infinity_and_keeps_nan() -> None:
    x = torch.tensor([float("nan"), 0.3, float("inf"), -float("inf"), 1e30])
    y = snap_composed(x, torch.ones(1), torch.zeros(1), CodeType("int", 4))
    assert y[0].isnan() and y[1:].tolist() == [0, 7, -8, 7]


def test_a_scale_below_zero_counts_by_its_magnitude() -> None:
    x = torch.linspace(-2, 2, 12).view(2, 6)
    found = []
    for sign in (1.0, -1.0):
        scale = torch.tensor([0.3, 0.2 * sign]).requires_grad_()
        layout = Layout(kind="channel")
        y = snap_tensor(x, scale, torch.zeros(2), CodeType("int", 3), layout, 0.5, magnitude=True)
        y.sum().backward()
        assert scale.grad is not None
        found.append((y.detach(), scale.grad * torch.tensor([1.0, sign])))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1])


def test_scales_lie_in_memory_as_the_layout_says() -> None:
    x = torch.empty(2, 8, 4, 4).to(memory_format=torch.channels_last)
    channel = matrix_of(x.shape, x.stride(), Layout(kind="channel", axes=(1,)), 8)
    assert channel is not None and channel.by_column and channel.channels == 8
    assert matrix_of(x.shape, x.stride(), Layout(kind="channel", axes=(1,)), 7) is None  # the number is wrong
    assert matrix_of(x.shape, x.stride(), Layout(), 8) is None
    view, scale, _ = align_grid(x, torch.ones(8), torch.zeros(8), Layout(kind="channel", axes=(1,)))
    assert view.shape == x.shape and scale.shape == (1, 8, 1, 1)
