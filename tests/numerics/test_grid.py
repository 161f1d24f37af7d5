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

from sparsebit.errors import ConfigError, SparsebitError
from sparsebit.numerics.grid import (
    SCALE_OF_ZEROS,
    Dtype,
    GridSpec,
    QParams,
    code_dtype,
    dequantize,
    fake_quantize,
    integer_range,
    qparams_from_range,
    quantize,
)
from sparsebit.numerics.layout import Layout, spread

GRIDS = [
    GridSpec(bits, symmetric, "int") for bits in (2, 3, 4, 7, 8, 12, 16) for symmetric in (True, False)
] + [GridSpec(8, True, "fp8_e4m3"), GridSpec(8, True, "fp8_e5m2")]
INTEGER_GRIDS = [grid for grid in GRIDS if grid.dtype == "int"]


def name(grid: GridSpec) -> str:
    return f"{'s' if grid.symmetric else 'u'}{grid.bits}" if grid.dtype == "int" else grid.dtype


def data(count: int = 20_000, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, generator=generator) * torch.tensor([0.7, 3.0]).repeat(count // 2)


def with_ties(x: Tensor, qparams: QParams) -> Tensor:
    """``x``, then the numbers half-way between codes, where every shortcut in the arithmetic shows."""
    codes = torch.arange(max(qparams.qmin, -300), min(qparams.qmax, 300)) - qparams.zero_point
    return torch.cat([x, (codes + 0.5) * qparams.scale, codes * qparams.scale])


def grid_of(x: Tensor, grid: GridSpec) -> QParams:
    return grid.qparams(x.min()[None], x.max()[None])


# --- against the runtime ----------------------------------------------------------------------------------------


def run_onnx(
    x: Tensor, qparams: QParams, axis: int | None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Codes and numbers from onnxruntime's own QuantizeLinear, Clip and DequantizeLinear, as the runtime runs them."""
    onnx = pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    kinds = {"fp8_e4m3": onnx.TensorProto.FLOAT8E4M3FN, "fp8_e5m2": onnx.TensorProto.FLOAT8E5M2}
    if qparams.dtype == "int":
        bits = next(b for b in (8, 16) if qparams.qmax < 2 ** (b - (qparams.qmin < 0)))
        kind = getattr(onnx.TensorProto, f"{'U' if qparams.qmin == 0 else ''}INT{bits}")
    else:
        kind = kinds[qparams.dtype]
    make, shape = onnx.helper, list(qparams.scale.shape) if axis is not None else []
    extra = {} if axis is None else {"axis": axis}
    zero_point = make.make_tensor("zero_point", kind, shape, qparams.zero_point.tolist())
    scale = make.make_tensor("scale", onnx.TensorProto.FLOAT, shape, qparams.scale.tolist())
    nodes = [make.make_node("QuantizeLinear", ["x", "scale", "zero_point"], ["raw"], **extra)]
    initializers = [scale, zero_point]
    if qparams.dtype == "int" and qparams.qmax - qparams.qmin + 1 not in (2**8, 2**16):
        initializers += [
            make.make_tensor(n, kind, [], [v]) for n, v in (("lo", qparams.qmin), ("hi", qparams.qmax))
        ]
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


@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_one_scale_is_onnx_to_the_last_bit(grid: GridSpec) -> None:
    for seed in range(3):
        x = data(seed=seed)
        qparams = grid_of(x[: 10 ** (seed + 2)], grid)  # later values may be out of range
        x = with_ties(x, qparams)
        codes, y = run_onnx(x, qparams, None)
        np.testing.assert_array_equal(quantize(x, qparams).float().numpy(), codes)
        np.testing.assert_array_equal(fake_quantize(x, qparams).numpy(), y)
        np.testing.assert_array_equal(dequantize(quantize(x, qparams), qparams).numpy(), y)


@pytest.mark.parametrize("grid", [GridSpec(8, True), GridSpec(8, False), GridSpec(4, True)], ids=name)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_scale_per_channel_is_onnx_to_the_last_bit(grid: GridSpec, axis: int) -> None:
    x = data(5 * 6 * 7 * 8).reshape(5, 6, 7, 8)
    rows = x.movedim(axis, 0).flatten(1)
    qparams = grid.qparams(rows.amin(1), rows.amax(1))
    codes, y = run_onnx(x, qparams, axis)
    np.testing.assert_array_equal(quantize(x, qparams, axis=axis).float().numpy(), codes)
    np.testing.assert_array_equal(fake_quantize(x, qparams, axis=axis).numpy(), y)


def test_the_ties_tell_the_shortcuts_apart() -> None:
    """So that the comparison above means something: both shortcuts fail it."""
    scales = torch.rand(20, generator=torch.Generator().manual_seed(0)) / 10 + 0.01
    by_reciprocal = rounded_late = 0
    for scale in scales.split(1):
        qparams = QParams(scale, torch.tensor([3.0]), 0, 255)
        x = with_ties(torch.zeros(0), qparams)
        right = quantize(x, qparams)
        by_reciprocal += int((((x * (1 / scale)).round() + 3).clamp(0, 255) != right).sum())
        rounded_late += int(((x / scale + 3).round().clamp(0, 255) != right).sum())
    assert by_reciprocal > 0
    assert rounded_late > 0


# --- grids ------------------------------------------------------------------------------------------------------


def test_integer_ranges() -> None:
    assert integer_range(2, True) == (-2, 1)
    assert integer_range(16, False) == (0, 65535)
    for wrong in (1, 17, 0, -8, True):
        with pytest.raises(ConfigError, match=r"(?s)bits from 2 to 16"):
            integer_range(wrong, True)
    with pytest.raises(ConfigError, match=r"8\.0"):
        integer_range(8.0, True)  # type: ignore[arg-type]


def half_a_step(grid: GridSpec) -> float:
    """In steps. The division and the product are rounded to float32, which shows where a range has many steps."""
    return 0.5 + 2 * 2**grid.bits * torch.finfo(torch.float32).eps


sizes = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-10, 10, width=32)


@given(sizes, sizes, st.sampled_from(GRIDS))
@example(-4.47584867477417, 4.295432090759277, GridSpec(16, False))  # nearly a tie at the end of the range
def test_a_grid_covers_its_range_and_has_an_exact_zero(a: float, b: float, grid: GridSpec) -> None:
    lo, hi = torch.tensor([min(a, b)]), torch.tensor([max(a, b)])
    qparams = grid.qparams(lo, hi)
    assert qparams.scale > 0
    assert qparams.scale.isfinite()
    assert qparams.zero_point == qparams.zero_point.round()
    assert qparams.qmin <= qparams.zero_point <= qparams.qmax
    assert fake_quantize(torch.zeros(1), qparams) == 0
    ends = torch.cat([lo, hi]).clamp(min=lo.clamp(max=0), max=hi.clamp(min=0))
    relative = {"int": 0, "fp8_e4m3": 2.0**-3, "fp8_e5m2": 2.0**-2}[grid.dtype]  # floats step in proportion
    step = torch.maximum(relative * ends.abs(), qparams.scale)
    assert ((fake_quantize(ends, qparams) - ends).abs() <= half_a_step(grid) * step).all()


@given(st.lists(st.floats(-10, 10, width=32), min_size=1), st.sampled_from(INTEGER_GRIDS))
def test_rounding_error_is_at_most_half_a_step(values: list[float], grid: GridSpec) -> None:
    x = torch.tensor(values)
    qparams = grid_of(x, grid)
    assert (fake_quantize(x, qparams) - x).abs().max() <= half_a_step(grid) * qparams.scale


def test_symmetric_scale_is_absmax_over_qmax() -> None:
    lo, hi = torch.tensor([-3.0, -1.0, 0.5]), torch.tensor([2.0, -0.5, 6.0])
    assert qparams_from_range(lo, hi, bits=8).scale.equal(torch.tensor([3.0, 1.0, 6.0]) / 127)
    assert qparams_from_range(lo, hi, dtype="fp8_e4m3").scale.equal(torch.tensor([3.0, 1.0, 6.0]) / 448)
    assert qparams_from_range(lo, hi, dtype="fp8_e5m2").scale.equal(torch.tensor([3.0, 1.0, 6.0]) / 57344)
    affine = qparams_from_range(lo, hi, symmetric=False)
    assert affine.zero_point.tolist() == [
        153,
        255,
        0,
    ]  # 0 is the last code, or the first, of a one-sided range
    assert fake_quantize(torch.tensor([6.0]), QParams(affine.scale[2:], affine.zero_point[2:], 0, 255)) == 6.0


@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_rows_of_zeros_get_a_small_scale(grid: GridSpec) -> None:
    qparams = grid.qparams(torch.zeros(2), torch.tensor([0.0, 1.0]))
    assert qparams.scale[0] == SCALE_OF_ZEROS
    assert qparams.scale[0].half() > 0
    assert fake_quantize(torch.zeros(2, 5), qparams, axis=0).equal(torch.zeros(2, 5))


def test_a_zero_point_of_zero_has_no_sign() -> None:
    assert str(GridSpec(8, False).qparams(torch.zeros(1), torch.ones(1)).zero_point) == "tensor([0.])"


def test_ranges_whose_width_overflows() -> None:
    qparams = qparams_from_range(torch.tensor([-3e38]), torch.tensor([3e38]), symmetric=False)
    assert qparams.scale.isfinite()
    assert fake_quantize(torch.tensor([3e38]), qparams).isfinite()


def test_half_precision_ranges_are_taken_in_float32() -> None:
    qparams = qparams_from_range(torch.tensor([-1.0]).half(), torch.tensor([2.0]).half())
    assert qparams.scale.dtype == torch.float32
    assert (
        qparams_from_range(torch.tensor([-1.0]).double(), torch.tensor([2.0]).double()).scale.dtype
        == torch.float64
    )


# --- codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "symmetric", "dtype", "expected"),
    [
        (8, True, "int", torch.int8),
        (4, True, "int", torch.int8),
        (8, False, "int", torch.uint8),
        (4, False, "int", torch.uint8),
        (9, False, "int", torch.int16),
        (16, True, "int", torch.int16),
        (16, False, "int", torch.int32),
        (8, True, "fp8_e4m3", torch.float8_e4m3fn),
        (8, True, "fp8_e5m2", torch.float8_e5m2),
    ],
)
def test_codes_come_in_the_smallest_dtype(
    bits: int, symmetric: bool, dtype: Dtype, expected: torch.dtype
) -> None:
    x = data(100)
    qparams = grid_of(x, GridSpec(bits, symmetric, dtype))
    assert quantize(x, qparams).dtype == code_dtype(qparams) == expected


@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_quantize_then_dequantize_is_fake_quantize(grid: GridSpec) -> None:
    x = data(6 * 500).reshape(6, 500)
    qparams = grid.qparams(x.amin(1) / 2, x.amax(1) / 2)
    y = fake_quantize(x, qparams, axis=0)
    assert dequantize(quantize(x, qparams, axis=0), qparams, axis=0).equal(y)
    assert fake_quantize(y, qparams, axis=0).equal(y)  # what is on the grid stays
    assert y.flatten().unique().numel() <= 6 * 2**grid.bits


def test_out_of_range_values_saturate() -> None:
    x = torch.tensor([-1e30, 1e30, -torch.inf, torch.inf])
    for grid in GRIDS:
        qparams = grid.qparams(torch.tensor([-1.0]), torch.tensor([1.0]))
        codes = quantize(x, qparams).float()
        assert codes.tolist() == [qparams.qmin, qparams.qmax] * 2
        assert fake_quantize(x, qparams).isfinite().all()
    assert fake_quantize(torch.tensor([torch.nan]), qparams).isnan()  # a fault stays visible


# --- granularity ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", GRIDS, ids=name)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_scale_per_channel_is_each_channel_alone(grid: GridSpec, axis: int) -> None:
    x = data(3 * 4 * 10).reshape(3, 4, 10)
    rows = x.movedim(axis, 0).flatten(1)
    qparams = grid.qparams(rows.amin(1), rows.amax(1))
    y = fake_quantize(x, qparams, axis=axis)
    for c in range(len(rows)):
        alone = qparams._replace(scale=qparams.scale[c : c + 1], zero_point=qparams.zero_point[c : c + 1])
        assert y.select(axis, c).equal(fake_quantize(x.select(axis, c), alone))


@pytest.mark.parametrize("shape", [(4, 8), (4, 7), (4, 6, 3, 3), (4, 7, 3), (8,), (7,)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("group_size", [2, 3, 16])
def test_groups_are_each_group_alone(shape: tuple[int, ...], axis: int, group_size: int) -> None:
    axis = min(axis, len(shape) - 1)
    x = data(10_000)[: int(np.prod(shape))].reshape(shape)
    generator = torch.Generator().manual_seed(1)
    outputs, inputs = (1, x.shape[0]) if x.dim() == 1 else (x.shape[axis], x.shape[1 - axis])
    groups = -(-inputs // group_size)
    scale = torch.rand(outputs * groups, generator=generator) / 10 + 0.01
    qparams = QParams(scale, torch.arange(outputs * groups) % 5 - 2.0, -8, 7)
    y = fake_quantize(x, qparams, axis=axis, group_size=group_size)
    assert dequantize(
        quantize(x, qparams, axis=axis, group_size=group_size), qparams, axis=axis, group_size=group_size
    ).equal(y)
    order = (x, y) if x.dim() == 1 or axis == 0 else (x.transpose(0, 1), y.transpose(0, 1))
    before, after = (t.unsqueeze(0) if t.dim() == 1 else t for t in order)
    for o in range(outputs):
        for g in range(groups):
            row = o * groups + g
            alone = qparams._replace(scale=scale[row : row + 1], zero_point=qparams.zero_point[row : row + 1])
            part = slice(g * group_size, (g + 1) * group_size)
            assert after[o, part].equal(fake_quantize(before[o, part], alone))


def test_a_scale_per_token_comes_spread() -> None:
    x = data(2 * 3 * 8).reshape(2, 3, 8)
    qparams = GridSpec(8).qparams(x.amin(-1).flatten(), x.amax(-1).flatten())
    scale, zero_point = (spread(values, x.shape, Layout(kind="token")) for values in qparams[:2])
    y = fake_quantize(x, qparams._replace(scale=scale, zero_point=zero_point))
    for token, expected, s in zip(x.flatten(0, 1), y.flatten(0, 1), qparams.scale, strict=True):
        assert fake_quantize(token, QParams(s[None], torch.zeros(1), -128, 127)).equal(expected)


def test_several_scales_need_an_axis() -> None:
    qparams = QParams(torch.ones(3), torch.zeros(3), -8, 7)
    with pytest.raises(
        SparsebitError, match=r"(?s)no axis.*3 scales for a tensor of shape \(3, 4\).*pass axis="
    ):
        fake_quantize(torch.ones(3, 4), qparams)
    with pytest.raises(SparsebitError, match=r"(?s)number of values is not the number of rows"):
        fake_quantize(torch.ones(3, 4), qparams, axis=1)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 3, 4, 5, 6)])
def test_any_shape_and_memory_order(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape)
    qparams = QParams(torch.tensor([0.3]), torch.zeros(1), -8, 7)
    assert fake_quantize(x, qparams).shape == shape
    assert fake_quantize(x.requires_grad_(), qparams).shape == shape
    last = data(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert fake_quantize(last, qparams).is_contiguous(memory_format=torch.channels_last)
    assert fake_quantize(last, qparams).equal(fake_quantize(last.contiguous(), qparams))


# --- dtypes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("grid", [GridSpec(8), GridSpec(8, False), GridSpec(8, True, "fp8_e4m3")], ids=name)
def test_half_precision_is_computed_in_float32(dtype: torch.dtype, grid: GridSpec) -> None:
    x = data().to(dtype)
    qparams = grid_of(x, grid)
    y = fake_quantize(x, qparams)
    assert y.dtype == dtype
    assert y.equal(fake_quantize(x.float(), qparams).to(dtype))
    assert quantize(x, qparams).float().equal(quantize(x.float(), qparams).float())
    scalar = QParams(
        qparams.scale[0], qparams.zero_point[0], *qparams[2:]
    )  # a number to torch's type promotion
    assert fake_quantize(x, scalar).equal(y)


def test_float64_stays_float64() -> None:
    x = data().double() / 3
    qparams = grid_of(x, GridSpec(16))
    y = fake_quantize(x, qparams)
    assert y.dtype == torch.float64
    expected = np.clip(np.rint(x.numpy() / qparams.scale.numpy()), -32768, 32767) * qparams.scale.numpy()
    np.testing.assert_array_equal(y.numpy(), expected)


# --- gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", GRIDS, ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_gradients_pass_inside_and_stop_outside(grid: GridSpec, dtype: torch.dtype) -> None:
    x = data(4 * 1000).reshape(4, 1000).to(dtype).requires_grad_()
    qparams = grid.qparams(torch.full((4,), -1.0), torch.full((4,), 2.0))
    y = fake_quantize(x, qparams, axis=0)
    assert y.equal(fake_quantize(x.detach(), qparams, axis=0))
    gradient = torch.randn(y.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    y.backward(gradient)
    steps = x.detach().to(torch.promote_types(dtype, torch.float32)) / qparams.scale[:, None]
    steps = (steps.round() if grid.dtype == "int" else steps) + qparams.zero_point[:, None]
    inside = (steps >= qparams.qmin) & (steps <= qparams.qmax)
    assert inside.any()
    assert not inside.all()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    assert x.grad.equal(torch.where(inside, gradient, 0))


def test_only_a_mask_is_kept_for_the_backward_pass() -> None:
    x = data(1000).requires_grad_()
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fake_quantize(x, grid_of(x.detach(), GridSpec(4)))
    assert [(tensor.dtype, tensor.numel()) for tensor in kept] == [(torch.bool, 1000)]


@pytest.mark.parametrize("grid", GRIDS, ids=name)
def test_learned_scales_see_the_same_numbers(grid: GridSpec) -> None:
    x = with_ties(data(), qparams := grid.qparams(torch.tensor([-0.9]), torch.tensor([2.1])))
    learned = qparams._replace(scale=qparams.scale.clone().requires_grad_())
    assert fake_quantize(x, learned).equal(fake_quantize(x, qparams))


def test_gradients_of_scale_and_zero_point() -> None:
    """d/ds is round(v) - v inside, and the distance of the end from the zero point outside; d/dz is -s outside."""
    x, z = torch.tensor([0.26, -0.34, 9.0, -9.0], dtype=torch.float64), 1.0
    scale = torch.tensor([0.1], dtype=torch.float64, requires_grad=True)
    zero_point = torch.tensor([z], dtype=torch.float64, requires_grad=True)
    expected_scale = [3 - 2.6, -3 + 3.4, 7 - z, -8 - z]
    expected_zero = [0, 0, -0.1, -0.1]
    for i in range(4):
        y = fake_quantize(x[i : i + 1], QParams(scale, zero_point, -8, 7))
        ds, dz = torch.autograd.grad(y.sum(), (scale, zero_point))
        assert ds.item() == pytest.approx(expected_scale[i])
        assert dz.item() == pytest.approx(expected_zero[i])


def test_second_backward_and_no_grad() -> None:
    x = data(10).requires_grad_()
    qparams = grid_of(x.detach(), GridSpec(4))
    with torch.no_grad():
        assert not fake_quantize(x, qparams).requires_grad
    (first,) = torch.autograd.grad(fake_quantize(x, qparams).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert second.equal(torch.full((10,), 2.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("grid", GRIDS, ids=name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_gpu_gives_the_same_bits(grid: GridSpec, dtype: torch.dtype) -> None:
    x = with_ties(data(), qparams := grid_of(data(), grid)).to(dtype)
    y = fake_quantize(x, qparams)
    on_gpu = qparams._replace(scale=qparams.scale.cuda(), zero_point=qparams.zero_point.cuda())
    assert fake_quantize(x.cuda(), on_gpu).cpu().equal(y)
    assert quantize(x.cuda(), on_gpu).cpu().float().equal(quantize(x, qparams).float())
    leaf = x.cuda().requires_grad_()
    fake_quantize(leaf, on_gpu).sum().backward()
    twin = x.clone().requires_grad_()
    fake_quantize(twin, qparams).sum().backward()
    assert leaf.grad is not None
    assert twin.grad is not None
    assert leaf.grad.cpu().equal(twin.grad)


def test_compiles_without_warnings() -> None:
    """Under torch.compile's eager backend, so that no compiler is needed: it is the tracing that is tested."""
    qparams = QParams(torch.tensor([0.3]), torch.tensor([2.0]), 0, 15)
    compiled = torch.compile(lambda x: fake_quantize(x, qparams), backend="eager", fullgraph=True)
    x = data(100)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, from tracing
        assert compiled(x).equal(fake_quantize(x, qparams))
        leaf = x.clone().requires_grad_()
        compiled(leaf).sum().backward()
    assert leaf.grad is not None
