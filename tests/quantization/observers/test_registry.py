"""What every observer promises, asked of each one in the registry."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sparsebit.config import TensorSpec
from sparsebit.numerics import CodeType, Layout, choose_grid
from sparsebit.numerics.layout import (
    activation_axis,
    join_blocks,
    row_blocks,
    to_rows,
    to_samples,
)
from sparsebit.quantization.observers import OBSERVERS, CalibrationError, Observer, Range, histogram, observe
from sparsebit.quantization.quantizers import Uniform
from tests.quantization.observers.data import NAMES, draw, feed, measure, sqnr

GRIDS = [
    CodeType.of(8, True),
    CodeType.of(8, False),
    CodeType.of(3, True),
    CodeType.of(4, False),
    CodeType.of(8, True, "fp8_e4m3"),
]

few = settings(max_examples=25, deadline=None)
every_observer = pytest.mark.parametrize("name", sorted(OBSERVERS))

# Numbers as they come: ordinary ones, many zeros and repetitions, powers of two, tiny and large ones.
numbers = st.one_of(
    st.floats(-8, 8, width=32).map(lambda x: x if abs(x) > 2.0**-120 else 0.0),
    st.sampled_from([0.0, 0.0, 6.0, -1.0, 1.0, 0.5, 1e-20, -1e-3, 1000.0, -4096.0]),
)
samples = st.lists(numbers, min_size=1, max_size=40)
grids = st.sampled_from(GRIDS)


def make(name: str) -> Observer[Any]:
    return OBSERVERS[name]()


def same(a: Range, b: Range, tolerance: float = 0.0) -> None:
    torch.testing.assert_close(a.lo, b.lo, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(a.hi, b.hi, rtol=tolerance, atol=tolerance)


def tolerance_of(observer: Observer[Any]) -> float:
    """Averages are sums of rounded products; all other states are exact."""
    return 1e-5 if observer.by_sample else 0.0


def resolution(x: Tensor) -> float:
    """The widest a bin can be."""
    return float(x.abs().max()) / 1024


# --- the range --------------------------------------------------------------------------------------------------


@every_observer
@few
@given(samples, grids)
def test_the_range_is_inside_the_data_and_contains_zero(
    name: str, values: list[float], grid: CodeType
) -> None:
    x = torch.tensor([values])
    for lo, hi in (measure(make(name), x, grid), observe(make(name), x, grid)):
        assert lo.shape == hi.shape == (1,)
        assert lo <= 0 <= hi
        slack = 1e-6 * x.abs().max()
        assert x.min().clamp(max=0) - slack <= lo
        assert hi <= x.max().clamp(min=0) + slack


@every_observer
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("grid", GRIDS)
def test_no_kind_of_data_makes_the_range_collapse(name: str, kind: str, grid: CodeType) -> None:
    """Clipping may cost some of the signal, but where there is a good range the one found is not a bad one."""
    if name == "aciq" and kind in ("heavy_tailed", "softmax"):
        pytest.skip("takes the data for Gaussian, which these are as far from as can be")
    x = draw(kind, 20_000)
    unclipped = sqnr(x, measure(OBSERVERS["minmax"](), x), grid)
    assert sqnr(x, measure(make(name), x, grid), grid) > min(unclipped, 10) - 1


@every_observer
@few
@given(samples, grids, st.integers(-20, 20))
def test_scaling_the_data_scales_the_range(
    name: str, values: list[float], grid: CodeType, power: int
) -> None:
    """Exactly for powers of two, as long as nothing is too small for a float."""
    x, factor = torch.tensor([values]), 2.0**power
    x = torch.where(x.abs() < 1e-6, 0, x)
    if power < -10 or 0 < x.abs().max() < 1e-3:
        return
    lo, hi = measure(make(name), x, grid)
    same(
        measure(make(name), x * factor, grid),
        Range(lo * factor, hi * factor),
        tolerance_of(make(name)) * factor,
    )


@every_observer
@pytest.mark.parametrize("factor", [0.1, 3.0, 1e4, 7e-7])
@pytest.mark.parametrize("kind", ["gaussian", "relu", "relu6"])
def test_scaling_by_any_factor_scales_the_range_nearly(name: str, factor: float, kind: str) -> None:
    """Bins fall differently, so the best threshold may be a neighbour."""
    x = draw(kind)
    before, after = measure(make(name), x), measure(make(name), x * factor)
    reach = max(float(-before.lo), float(before.hi))
    assert after.lo / factor == pytest.approx(float(before.lo), abs=0.06 * reach)
    assert after.hi / factor == pytest.approx(float(before.hi), abs=0.06 * reach)


# --- streaming --------------------------------------------------------------------------------------------------


@every_observer
@few
@given(samples, grids, st.data())
def test_batches_do_not_matter(name: str, values: list[float], grid: CodeType, data: st.DataObject) -> None:
    """One batch or several of unequal sizes: the same state, to the last bit where it is one of counts or extremes."""
    observer = make(name)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    x = torch.tensor([values])
    sizes = [b - a for a, b in zip([0, *cuts], [*cuts, len(values)], strict=True)]
    if observer.by_sample:
        x = x[:, :, None]
    whole, parts = feed(observer, [x]), feed(observer, list(x.split(sizes, dim=1)))
    same(observer.finish(whole, grid), observer.finish(parts, grid), tolerance_of(observer) * 1000)
    if not observer.by_sample:
        assert all(a.equal(b) for a, b in zip(whole, parts, strict=True))


@every_observer
@few
@given(samples, st.randoms(use_true_random=False))
def test_order_does_not_matter(name: str, values: list[float], random: Any) -> None:
    """Except for a moving average over samples, which is defined by their order; inside a sample it is free too."""
    observer = make(name)
    shuffled = list(values)
    random.shuffle(shuffled)
    states = [feed(observer, [torch.tensor([v])]) for v in (values, shuffled)]
    assert all(a.equal(b) for a, b in zip(*states, strict=True))


@every_observer
@few
@given(samples, samples, grids)
def test_merging_is_observing_everything(
    name: str, first: list[float], second: list[float], grid: CodeType
) -> None:
    observer = make(name)
    a, b = torch.tensor([first]), torch.tensor([second])
    merged = observer.merge(feed(observer, [a]), feed(observer, [b]))
    same(
        observer.finish(merged, grid),
        observer.finish(feed(observer, [a, b]), grid),
        tolerance_of(observer) * 1000,
    )
    empty = observer.init(a)
    for with_nothing in (
        observer.merge(feed(observer, [a]), empty),
        observer.merge(empty, feed(observer, [a])),
    ):
        same(observer.finish(with_nothing, grid), measure(observer, a, grid), tolerance_of(observer) * 1000)


@every_observer
@few
@given(st.lists(samples, min_size=2, max_size=4), grids)
def test_rows_do_not_know_of_each_other(name: str, rows: list[list[float]], grid: CodeType) -> None:
    length = min(map(len, rows))
    x = torch.tensor([row[:length] for row in rows])
    for find in (measure, observe):
        together = find(make(name), x, grid)
        alone = [find(make(name), row[None], grid) for row in x]
        same(together, Range(*(torch.cat(ends) for ends in zip(*alone, strict=True))), 1e-6)


@every_observer
def test_the_state_is_a_value_of_bounded_size(name: str) -> None:
    observer, x = make(name), draw("gaussian", 1000).view(2, 500)
    first = feed(observer, [x])
    copy = [field.clone() for field in first]
    sizes = [field.shape for field in first]
    later = first
    for step in range(5):
        later = observer.update(later, x * 3.0**step)
    observer.merge(later, first)
    observer.finish(first, CodeType.of())
    assert all(field.equal(before) for field, before in zip(first, copy, strict=True))
    assert [field.shape for field in later] == sizes
    assert sum(field.numel() for field in later) <= 2 * 4096 + 10


@every_observer
def test_gradients_are_not_recorded(name: str) -> None:
    x = draw("gaussian", 100).view(2, 50).requires_grad_()
    assert not any(field.requires_grad for field in feed(make(name), [x]))
    assert not any(end.requires_grad for end in observe(make(name), x, CodeType.of()))


# --- granularity ------------------------------------------------------------------------------------------------


@every_observer
@pytest.mark.parametrize("shape", [(6,), (6, 4), (6, 4, 5), (6, 4, 5, 3), (6, 4, 2, 5, 3)])
@pytest.mark.parametrize("layout", ["NCHW", "NLC"])
def test_activations_of_any_rank_over_unequal_batches(name: str, shape: tuple[int, ...], layout: Any) -> None:
    """Per channel, over several batches and a smaller last one: C ranges, those of the channels."""
    observer, x = make(name), draw("gaussian", 5000)[: torch.Size(shape).numel()].reshape(shape)
    rows = Layout(kind="channel", axes=(activation_axis(x.dim(), layout),))
    batches = [x, x] if x.dim() == 1 else list(x.split(4))
    change = to_samples if observer.by_sample else to_rows
    lo, hi = observer.finish(feed(observer, [change(batch, rows) for batch in batches]), CodeType.of())
    channels = x.shape[rows.axes[0]]
    assert lo.shape == hi.shape == (channels,)
    extremes = to_rows(x, rows)
    assert (lo >= extremes.amin(1).clamp(max=0) - 1e-6).all()
    assert (hi <= extremes.amax(1).clamp(min=0) + 1e-6).all()


CUTS = [
    Layout(),
    Layout(kind="channel"),
    Layout(kind="channel", axes=(1,)),
    Layout(kind="group", group_size=2),
    Layout(kind="group", group_size=4),
    Layout(kind="group", group_size=4, axes=(1,), input_axis=0),
]


def slices(x: Tensor, rows: Layout) -> list[Tensor]:
    """What shares a range, cut out by index."""
    if rows.kind == "tensor":
        return [x]
    channels = x.unbind(rows.axes[0])
    return (
        list(channels) if rows.group_size is None else [p for c in channels for p in c.split(rows.group_size)]
    )


@every_observer
@pytest.mark.parametrize("shape", [(8, 6), (8, 6, 5), (8, 6, 5, 3), (8, 6, 2, 5, 3)])
@pytest.mark.parametrize("rows", CUTS, ids=str)
@pytest.mark.parametrize("grid", [CodeType.of(8), CodeType.of(4, False)])
def test_every_granularity_is_its_slices_alone_in_float64(
    name: str, shape: tuple[int, ...], rows: Layout, grid: CodeType
) -> None:
    x = draw("laplace", 5000)[: torch.Size(shape).numel()].reshape(shape)
    found = [observe(make(name), block, grid) for block in row_blocks(x, rows)]
    lo, hi = (join_blocks(ends) for ends in zip(*found, strict=True))
    pieces = [piece.double().reshape(1, -1) for piece in slices(x, rows)]
    alone = [observe(make(name), piece, grid) for piece in pieces]
    expected = Range(*(torch.cat(ends) for ends in zip(*alone, strict=True)))
    assert expected.lo.dtype == torch.float64
    # Rounding may put a border of kl_histogram on the other side of a bin's middle: then it is a neighbour that wins.
    slack = float(x.abs().max()) / 64 if name == "kl_histogram" else 1e-6
    torch.testing.assert_close(lo.double(), expected.lo, rtol=1e-6, atol=slack)
    torch.testing.assert_close(hi.double(), expected.hi, rtol=1e-6, atol=slack)


# --- odd data ---------------------------------------------------------------------------------------------------

ODD = {
    "zeros": torch.zeros(2, 9),
    "one value": torch.tensor([[3.0], [-2.0]]),
    "constant": torch.tensor([[5.0] * 9, [-5.0] * 9]),
    "one zero row": torch.stack([torch.zeros(9), torch.arange(9.0)]),
    "outlier": torch.cat(
        [torch.randn(2, 999, generator=torch.Generator().manual_seed(0)), torch.full((2, 1), 1e6)], 1
    ),
    "largest floats": torch.tensor([[3e38, -3e38, 1.0], [3.4e38, 0.0, 2.0]]),
    "smallest floats": torch.tensor([[1e-38, -1e-38, 0.0], [1e-45, 0.0, 1e-44]]),
    "both": torch.tensor([[3e38, 1e-45, -1e-45], [-3e38, 1e-38, 0.0]]),
    "integers": torch.arange(-9, 9).view(2, 9),
    "booleans": torch.tensor([[True, False], [False, False]]),
    "unsigned": torch.arange(18, dtype=torch.uint8).view(2, 9),
}


@every_observer
@pytest.mark.parametrize("kind", sorted(ODD))
@pytest.mark.parametrize("grid", [*GRIDS, CodeType.of(16, True), CodeType.of(2, False)])
def test_odd_data_gives_a_sane_range(name: str, kind: str, grid: CodeType) -> None:
    x = ODD[kind]
    for lo, hi in (measure(make(name), x, grid), observe(make(name), x, grid)):
        assert lo.isfinite().all()
        assert hi.isfinite().all()
        assert (lo <= 0).all()
        assert (hi >= 0).all()
        assert (lo >= x.float().amin(1).clamp(max=0)).all()
        assert (hi <= x.float().amax(1).clamp(min=0)).all()
        chosen = choose_grid(lo, hi, grid)
        assert (chosen.scale > 0).all()
        assert chosen.scale.isfinite().all()
    if kind in ("zeros", "one value", "constant"):
        chosen = choose_grid(*measure(make(name), x, grid), grid, Layout(kind="channel"))
        torch.testing.assert_close(chosen.snap(x), x, rtol=0.005, atol=0)


@every_observer
def test_no_data_is_the_range_of_zero(name: str) -> None:
    observer = make(name)
    for state in (observer.init(torch.zeros(3, 4)), feed(observer, [torch.zeros(3, 0)])):
        same(observer.finish(state, CodeType.of()), Range(torch.zeros(3), torch.zeros(3)))
    same(observe(observer, torch.zeros(3, 0), CodeType.of()), Range(torch.zeros(3), torch.zeros(3)))
    x = torch.ones(3, 2)
    same(observer.finish(feed(observer, [x[:, :0], x, x[:, :0]]), CodeType.of()), measure(observer, x))


@every_observer
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("grid", GRIDS[:3])
def test_other_dtypes_are_their_values(name: str, dtype: torch.dtype, grid: CodeType) -> None:
    x = draw("gaussian", 5000).view(2, -1).to(dtype)
    found = measure(make(name), x, grid)
    assert found.lo.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    same(Range(found.lo.float(), found.hi.float()), measure(make(name), x.float(), grid), 1e-6)


@every_observer
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_not_finite_is_refused_with_its_row(name: str, value: float, dtype: torch.dtype) -> None:
    observer, x = make(name), torch.ones(4, 10, dtype=dtype)
    good = torch.ones(4, 3, dtype=dtype)
    x[2, 5] = x[3, 1] = value
    what = "1 NaN and 0 infinite" if value != value else "0 NaN and 1 infinite"
    with pytest.raises(CalibrationError, match=rf"(?s)row 2 of 4 .*{what} among 10 values") as caught:
        observe(observer, x, CodeType.of())
    assert caught.value.row == 2
    # In a stream it is found when that is asked for, whatever comes before and after.
    assert observer.is_finite(feed(observer, [good, good]))
    assert not observer.is_finite(feed(observer, [good, x, good]))
    assert not observer.is_finite(observer.merge(feed(observer, [good]), feed(observer, [x])))


class RefuseReadingBack(TorchDispatchMode):
    """Refuses every operator whose result the host must wait for: on a GPU each of them stops the queue."""

    WAITS = ("_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "_unique2", "item")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, masks = func.overloadpacket.__name__, []
        if name in ("index", "index_put", "index_put_"):  # a mask is turned into positions first
            masks = [one for one in args[1] if one is not None and one.dtype == torch.bool]
        assert name not in self.WAITS and not masks, f"{func} waits for the device"
        return func(*args, **(kwargs or {}))


def test_reading_back_is_seen() -> None:
    for read in (lambda x: x.sum().item(), lambda x: bool((x > 0).all()), lambda x: x[x > 0], torch.nonzero):
        with pytest.raises(AssertionError, match="waits for the device"), RefuseReadingBack():
            read(torch.ones(3))


@every_observer
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_update_waits_for_the_device(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data of growing and of shrinking size, per tensor and per channel, and what quantizers do around it."""
    monkeypatch.setattr(histogram, "is_free_to_ask", lambda x: False)  # as for data on a GPU
    observer = make(name)
    for rows in (1, 5):
        batches = [draw("laplace", 640, seed=i).view(rows, -1).to(dtype) * 10.0**i for i in (0, 2, 1)]
        with RefuseReadingBack():
            state = observer.merge(feed(observer, batches), feed(observer, batches[:1]))
            observer.is_finite(state)
        assert observer.is_finite(state)
    for granularity in ("tensor", "channel"):
        quantizer = Uniform("x", "A", TensorSpec(granularity=granularity, symmetric=False, observer=name))  # type: ignore[arg-type]
        with RefuseReadingBack():
            for seed in range(3):
                quantizer.observe(
                    torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(seed)) * seed
                )
        quantizer.finish()
        assert quantizer.calibrated


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_observer
@pytest.mark.parametrize("grid", GRIDS)
def test_on_a_gpu_all_stays_there_and_agrees(name: str, grid: CodeType) -> None:
    observer = make(name)
    for kind in NAMES:
        x = draw(kind).view(2, -1)
        state, on_gpu = feed(observer, list(x.split(7000, 1))), feed(observer, list(x.cuda().split(7000, 1)))
        assert all(field.is_cuda for field in on_gpu)
        if not observer.by_sample:
            assert all(a.equal(b.cpu()) for a, b in zip(state, on_gpu, strict=True))
        found = observer.finish(on_gpu, grid)
        assert found.lo.is_cuda
        same(Range(found.lo.cpu(), found.hi.cpu()), observer.finish(state, grid), 1e-5)
        whole = observe(observer, x.cuda(), grid)
        assert whole.hi.is_cuda
