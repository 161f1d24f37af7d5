"""The arithmetic is that of ONNX to the last bit, and its gradients are the straight-through ones."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.numerics import CodeType, Grid, Layout, choose_grid
from sparsebit.numerics.grid import SCALE_OF_ZEROS
from sparsebit.numerics.layout import PER_TENSOR, row_count, spread

INTEGERS = [CodeType(kind, bits) for kind in ("int", "uint", "full") for bits in (2, 3, 4, 7, 8, 12, 16)]
CODES = [*INTEGERS, CodeType("fp8_e4m3", 8), CodeType("fp8_e5m2", 8), CodeType("nf4", 4)]
# What ONNX has: scales above zero, and no NF4.
OF_ONNX = [code for code in CODES if code.kind not in ("full", "nf4")]
CHANNELS = Layout(kind="channel")


def data(count: int = 20_000, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator) * torch.tensor([0.7, 3.0]).repeat(count // 2)


def with_ties(x: Tensor, grid: Grid) -> Tensor:
    """``x``, then the numbers half-way between codes, where every shortcut in the arithmetic shows."""
    codes = torch.arange(max(grid.code.low, -300), min(grid.code.high, 300)) - grid.zero_point
    return torch.cat([x, (codes + 0.5) * grid.scale, codes * grid.scale])


def grid_of(x: Tensor, code: CodeType) -> Grid:
    return choose_grid(x.min()[None], x.max()[None], code)


# --- against the runtime ----------------------------------------------------------------------------------------


def run_onnx(x: Tensor, grid: Grid, axis: int | None) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Codes and numbers from onnxruntime's own QuantizeLinear, Clip and DequantizeLinear, as the runtime runs them."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    kinds = {"fp8_e4m3": onnx.TensorProto.FLOAT8E4M3FN, "fp8_e5m2": onnx.TensorProto.FLOAT8E5M2}
    code, bits = grid.code, 8 if grid.code.bits <= 8 else 16
    kind = getattr(onnx.TensorProto, f"{code.kind.upper()}{bits}") if code.is_integer else kinds[code.kind]
    make, shape = onnx.helper, list(grid.scale.shape) if axis is not None else []
    extra = {} if axis is None else {"axis": axis}
    zero_point = make.make_tensor("zero_point", kind, shape, grid.zero_point.tolist())
    scale = make.make_tensor("scale", onnx.TensorProto.FLOAT, shape, grid.scale.tolist())
    nodes = [make.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["raw"], **extra)]
    initializers = [scale, zero_point]
    if code.is_integer and code.bits not in (8, 16):
        initializers += [make.make_tensor(n, kind, [], [v]) for n, v in (("lo", code.low), ("hi", code.high))]
        if bits == 8:
            nodes.append(make.make_node("Clip", ["raw", "lo", "hi"], ["q"]))
        else:  # the runtime has no Clip for 16 bits
            nodes += [
                make.make_node("Cast", ["raw"], ["raw32"], to=onnx.TensorProto.INT32),
                make.make_node("Cast", ["lo"], ["lo32"], to=onnx.TensorProto.INT32),
                make.make_node("Cast", ["hi"], ["hi32"], to=onnx.TensorProto.INT32),
                make.make_node("Clip", ["raw32", "lo32", "hi32"], ["clipped"]),
                make.make_node("Cast", ["clipped"], ["q"], to=kind),
            ]
    else:
        nodes.append(make.make_node("Identity", ["raw"], ["q"]))
    nodes.append(make.make_node("DequantizeLinear", ["q", "scale", "zero_point"], ["y"], **extra))
    nodes.append(make.make_node("Cast", ["q"], ["codes"], to=onnx.TensorProto.FLOAT))
    outputs = [make.make_tensor_value_info(n, onnx.TensorProto.FLOAT, list(x.shape)) for n in ("codes", "y")]
    inputs = [make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(x.shape))]
    graph = make.make_graph(nodes, "qdq", inputs, outputs, initializers)
    model = make.make_model(graph, opset_imports=[make.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    codes, y = session.run(["codes", "y"], {"x": x.numpy()})
    return codes, y


@pytest.mark.parametrize("code", OF_ONNX, ids=str)
def test_one_scale_is_onnx_to_the_last_bit(code: CodeType) -> None:
    for seed in range(3):
        x = data(seed=seed)
        grid = grid_of(x[: 10 ** (seed + 2)], code)  # later values may be out of range
        x = with_ties(x, grid)
        codes, y = run_onnx(x, grid, None)
        np.testing.assert_array_equal(grid.codes(x).float().numpy(), codes)
        np.testing.assert_array_equal(grid.snap(x).numpy(), y)
        np.testing.assert_array_equal(grid.numbers(grid.codes(x)).numpy(), y)


@pytest.mark.parametrize("code", [CodeType("int", 8), CodeType("uint", 8), CodeType("int", 4)], ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_scale_per_channel_is_onnx_to_the_last_bit(code: CodeType, axis: int) -> None:
    x = data(5 * 6 * 7 * 8).reshape(5, 6, 7, 8)
    rows = x.movedim(axis, 0).flatten(1)
    grid = choose_grid(rows.amin(1), rows.amax(1), code, Layout(kind="channel", axes=(axis,)))
    codes, y = run_onnx(x, grid, axis)
    np.testing.assert_array_equal(grid.codes(x).float().numpy(), codes)
    np.testing.assert_array_equal(grid.snap(x).numpy(), y)


def test_the_ties_tell_the_shortcuts_apart() -> None:
    """So that the comparison above means something: both shortcuts fail it."""
    scales = torch.rand(20, generator=torch.Generator().manual_seed(0)) / 10 + 0.01
    by_reciprocal = rounded_late = 0
    for scale in scales.split(1):
        grid = Grid(scale, torch.tensor([3.0]), CodeType("uint", 8))
        x = with_ties(torch.zeros(0), grid)
        right = grid.codes(x)
        by_reciprocal += int((((x * (1 / scale)).round() + 3).clamp(0, 255) != right).sum())
        rounded_late += int(((x / scale + 3).round().clamp(0, 255) != right).sum())
    assert by_reciprocal > 0
    assert rounded_late > 0


# --- every layout, type and dtype against float64 ---------------------------------------------------------------

LAYOUTS: dict[str, tuple[tuple[int, ...], Layout]] = {
    "tensor": ((4, 6), Layout()),
    "channel": ((4, 6, 3), CHANNELS),
    "channel of an activation": ((4, 6, 3), Layout(kind="channel", axes=(1,))),
    "transposed": ((6, 4, 3), Layout(kind="channel", axes=(1,), groups=2)),
    "group": ((4, 6), Layout(kind="group", group_size=3)),
    "group of a convolution": ((4, 6, 2, 2), Layout(kind="group", group_size=2)),
    "ragged group": ((4, 7), Layout(kind="group", group_size=3)),
    "group of a transposed convolution": (
        (6, 4, 2),
        Layout(kind="group", axes=(1,), input_axis=0, groups=2, group_size=2),
    ),
    "stacked experts": ((2, 3, 8), Layout(kind="group", axes=(0, 1), input_axis=2, group_size=4)),
    "experts, inputs first": ((2, 8, 3), Layout(kind="group", axes=(0, 2), input_axis=1, group_size=4)),
    "act order": ((4, 8), Layout(kind="group", group_size=4)),
    "token": ((2, 3, 8), Layout(kind="token")),
}


def reference(x: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Codes (or multiples of the scale) and numbers, from the definition, element by element in float64."""
    count = torch.arange(grid.scale.numel())
    row = spread(count, x.shape, grid.layout, grid.order).expand(x.shape) if len(count) > 1 else count[0]
    scale, zero = grid.scale.double()[row], grid.zero_point.double()[row]
    code = grid.code
    # The division is that of the compute dtype: its ties are what makes two runtimes agree.
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    steps = (x.to(wide) / grid.scale.to(wide)[row]).double()
    if code.is_integer:
        steps = (steps.round() + zero).clamp(code.low, code.high)
        return steps, (steps - zero) * scale
    steps = code.nearest(steps.clamp(code.low, code.high).to(wide)).double()
    return steps, steps * scale


@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("case", LAYOUTS)
def test_layouts_types_and_dtypes_follow_the_definition(case: str, code: CodeType) -> None:
    shape, layout = LAYOUTS[case]
    generator = torch.Generator().manual_seed(len(case) + code.bits)
    order = torch.randperm(8, generator=generator) if case == "act order" else None
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(shape, generator=generator).to(dtype)
        rows = row_count(shape, layout)
        lo, hi = -torch.rand(rows, generator=generator) * 2, torch.rand(rows, generator=generator) * 2
        for scale_dtype in (None, torch.float16, torch.bfloat16):
            grid = choose_grid(lo, hi, code, layout, scale_dtype=scale_dtype, order=order)
            assert grid.scale.dtype == (scale_dtype or torch.float32)
            steps, numbers = reference(x, grid)
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            codes = grid.codes(x)
            assert codes.shape == x.shape and codes.dtype == code.dtype
            assert torch.equal(code.decode(codes, torch.float64), steps)
            torch.testing.assert_close(grid.numbers(codes, wide), numbers.to(wide), rtol=1e-6, atol=0)
            assert torch.equal(grid.numbers(codes, dtype), grid.snap(x))
            assert torch.equal(grid.unpack(grid.pack(codes), shape[-1]).double(), codes.double())
            assert torch.equal(grid.steps(x).double() * grid.spread(shape)[0].double(), numbers)


@pytest.mark.parametrize("code", INTEGERS, ids=str)
def test_what_is_on_the_grid_stays(code: CodeType) -> None:
    x = data(6 * 500).reshape(6, 500)
    grid = choose_grid(x.amin(1) / 2, x.amax(1) / 2, code, CHANNELS)
    y = grid.snap(x)
    assert grid.snap(y).equal(y)
    assert y.flatten().unique().numel() <= 6 * 2**code.bits


def test_a_scale_is_rounded_before_anything_uses_it() -> None:
    lo, hi = torch.tensor([-1.0, 0.0]), torch.tensor([3.3, 1e-9])
    grid = choose_grid(lo, hi, CodeType("uint", 4), CHANNELS, scale_dtype=torch.float16)
    assert grid.scale[0] == ((hi - lo) / 15)[0].half()
    assert grid.zero_point[0] == (1.0 / grid.scale[0].float()).round()
    assert grid.scale[1] > 0  # what would be zero in float16 is its smallest number
    huge = choose_grid(-hi * 1e30, hi * 1e30, CodeType("int", 8), CHANNELS, scale_dtype=torch.float16)
    assert huge.scale.isfinite().all()


# --- grids ------------------------------------------------------------------------------------------------------


def half_a_step(code: CodeType) -> float:
    """In steps. The division and the product are rounded to float32, which shows where a range has many steps."""
    return 0.5 + 2.0 ** (code.bits + 1) * torch.finfo(torch.float32).eps


sizes = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-10, 10, width=32)


@given(sizes, sizes, st.sampled_from(OF_ONNX))
@example(-4.47584867477417, 4.295432090759277, CodeType("uint", 16))  # nearly a tie at the end of the range
def test_a_grid_covers_its_range_and_has_an_exact_zero(a: float, b: float, code: CodeType) -> None:
    lo, hi = torch.tensor([min(a, b)]), torch.tensor([max(a, b)])
    grid = choose_grid(lo, hi, code)
    assert grid.scale > 0
    assert grid.scale.isfinite()
    assert grid.zero_point == grid.zero_point.round()
    assert code.low <= grid.zero_point <= code.high
    assert grid.snap(torch.zeros(1)) == 0
    ends = torch.cat([lo, hi]).clamp(min=lo.clamp(max=0), max=hi.clamp(min=0))
    relative = {"fp8_e4m3": 2.0**-3, "fp8_e5m2": 2.0**-2}.get(code.kind, 0.0)  # floats step in proportion
    step = torch.maximum(relative * ends.abs(), grid.scale)
    assert ((grid.snap(ends) - ends).abs() <= half_a_step(code) * step).all()


@given(st.floats(-100, 100, width=32), st.floats(-100, 100, width=32), st.integers(2, 16))
def test_a_full_range_grid_holds_the_extreme_exactly(a: float, b: float, bits: int) -> None:
    lo, hi = torch.tensor([min(a, b, 0.0)]), torch.tensor([max(a, b, 0.0)])
    grid = choose_grid(lo, hi, CodeType("full", bits))
    extreme = hi if hi > -lo else lo
    assert grid.zero_point == 0
    if extreme.abs() > 1e-30:
        assert torch.sign(grid.scale) == -torch.sign(extreme)
        assert grid.codes(extreme) == grid.code.low
        torch.testing.assert_close(grid.snap(extreme), extreme)
        assert grid.scale.abs() == extreme.abs() / 2 ** (bits - 1)


@given(st.lists(st.floats(-10, 10, width=32), min_size=1), st.sampled_from(INTEGERS[:14]))
def test_rounding_error_is_at_most_half_a_step(values: list[float], code: CodeType) -> None:
    x = torch.tensor(values)
    grid = grid_of(x, code)
    assert (grid.snap(x) - x).abs().max() <= half_a_step(code) * grid.scale


def test_symmetric_scale_is_absmax_over_qmax() -> None:
    lo, hi = torch.tensor([-3.0, -1.0, 0.5]), torch.tensor([2.0, -0.5, 6.0])
    largest = torch.tensor([3.0, 1.0, 6.0])
    for name, top in (("int8", 127), ("fp8_e4m3", 448), ("fp8_e5m2", 57344), ("nf4", 1)):
        assert choose_grid(lo, hi, CodeType.parse(name)).scale.equal(largest / top)
    affine = choose_grid(lo, hi, CodeType("uint", 8))
    # 0 is the last code, or the first, of a one-sided range.
    assert affine.zero_point.tolist() == [153, 255, 0]
    assert Grid(affine.scale[2:], affine.zero_point[2:], affine.code).snap(torch.tensor([6.0])) == 6.0


@pytest.mark.parametrize("code", CODES, ids=str)
def test_rows_of_zeros_get_a_small_scale(code: CodeType) -> None:
    grid = choose_grid(torch.zeros(2), torch.tensor([0.0, 1.0]), code, CHANNELS)
    assert grid.scale[0].abs() == SCALE_OF_ZEROS
    assert grid.scale[0].abs().half() > 0
    assert grid.snap(torch.zeros(2, 5)).equal(torch.zeros(2, 5))


def test_a_zero_point_of_zero_has_no_sign() -> None:
    assert str(choose_grid(torch.zeros(1), torch.ones(1), CodeType("uint", 8)).zero_point) == "tensor([0.])"


def test_ranges_whose_width_overflows() -> None:
    grid = choose_grid(torch.tensor([-3e38]), torch.tensor([3e38]), CodeType("uint", 8))
    assert grid.scale.isfinite()
    assert grid.snap(torch.tensor([3e38])).isfinite()


def test_half_precision_ranges_are_taken_in_float32() -> None:
    for dtype, expected in ((torch.float16, torch.float32), (torch.float64, torch.float64)):
        grid = choose_grid(torch.tensor([-1.0]).to(dtype), torch.tensor([2.0]).to(dtype), CodeType())
        assert grid.scale.dtype == expected


def test_out_of_range_values_saturate() -> None:
    x = torch.tensor([-1e30, 1e30, -torch.inf, torch.inf])
    for code in CODES:
        grid = choose_grid(torch.tensor([-1.0]), torch.tensor([0.9]), code)
        assert grid.code.decode(grid.codes(x), torch.float32).tolist() == [code.low, code.high] * 2
        assert grid.snap(x).isfinite().all()
    assert choose_grid(-torch.ones(1), torch.ones(1), CodeType()).snap(torch.tensor([torch.nan])).isnan()


def test_ends_are_the_numbers_of_the_outermost_codes() -> None:
    grid = Grid(torch.tensor([0.5, 2.0]), torch.tensor([1.0, 0.0]), CodeType("uint", 2), CHANNELS)
    low, high = grid.ends()
    assert low.tolist() == [-0.5, 0.0] and high.tolist() == [1.0, 6.0]
    assert grid.ends(beyond=0.5)[1].tolist() == [1.25, 7.0]


def test_several_scales_need_a_layout() -> None:
    grid = Grid(torch.ones(3), torch.zeros(3), CodeType("int", 4))
    with pytest.raises(
        SparsebitError, match=r"(?s)layout that has one.*3 scales for a tensor of shape \(3, 4\)"
    ):
        grid.snap(torch.ones(3, 4))
    with pytest.raises(SparsebitError, match=r"number of scales does not match"):
        Grid(torch.ones(3), torch.zeros(3), grid.code, Layout(kind="channel", axes=(1,))).snap(
            torch.ones(3, 4)
        )


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 3, 4, 5, 6)])
def test_any_shape_and_memory_order(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    grid = Grid(torch.tensor([0.3]), torch.zeros(1), CodeType("int", 4))
    assert grid.snap(x).shape == shape
    assert grid.snap(x.requires_grad_()).shape == shape
    last = data(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert grid.snap(last).is_contiguous(memory_format=torch.channels_last)
    assert grid.snap(last).equal(grid.snap(last.contiguous()))


def test_a_scale_that_is_a_number_to_torch_is_not_weaker_than_half_precision() -> None:
    x = data().half()
    grid = grid_of(x, CodeType())
    assert Grid(grid.scale[0], grid.zero_point[0], grid.code).snap(x).equal(grid.snap(x))


def test_moving_keeps_the_grid() -> None:
    grid = Grid(torch.ones(2, requires_grad=True), torch.zeros(2), CodeType(), CHANNELS, torch.arange(2))
    moved = grid.to("cpu").detach()
    assert not moved.scale.requires_grad and moved.layout == CHANNELS and moved.order is not None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_gpu_gives_the_same_bits(code: CodeType, dtype: torch.dtype) -> None:
    x = with_ties(data(), grid := grid_of(data(), code)).to(dtype)
    y, on_gpu = grid.snap(x), grid.to("cuda")
    assert on_gpu.snap(x.cuda()).cpu().equal(y)
    assert on_gpu.codes(x.cuda()).cpu().float().equal(grid.codes(x).float())
    leaf, twin = x.cuda().requires_grad_(), x.clone().requires_grad_()
    on_gpu.snap(leaf).sum().backward()
    grid.snap(twin).sum().backward()
    assert leaf.grad is not None
    assert twin.grad is not None
    assert leaf.grad.cpu().equal(twin.grad)


@pytest.mark.parametrize("code", [CodeType("uint", 4), CodeType("full", 4), CodeType("nf4", 4)], ids=str)
def test_compiles_without_warnings(code: CodeType) -> None:
    """Under torch.compile's eager backend, so that no compiler is needed: it is the tracing that is tested."""
    scale = torch.tensor([0.3], requires_grad=True)
    grid = Grid(scale, torch.zeros(1), code, PER_TENSOR)  # outside: torch 2.11 cannot trace the making of one

    def run(x: Tensor) -> Tensor:
        return grid.snap(x)

    compiled = torch.compile(run, backend="eager", fullgraph=True)
    x = data(100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, from tracing
        assert compiled(x).equal(run(x))
        leaf = x.clone().requires_grad_()
        compiled(leaf).sum().backward()
    assert leaf.grad is not None and scale.grad is not None


def test_scales_of_small_weights_in_float16() -> None:
    """Below its normal numbers, float16 still has steps of 6e-8; a larger scale would round most weights to zero."""
    weight = torch.randn(8, 256) * 1e-3
    grid = choose_grid(*weight.aminmax(dim=1), CodeType("int", 8), CHANNELS, scale_dtype=torch.float16)
    assert (grid.scale < 2.0**-14).all() and torch.equal(grid.scale.half().float(), grid.scale.float())
    assert (grid.snap(weight) - weight).norm() < 0.01 * weight.norm()
