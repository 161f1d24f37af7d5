from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsebit.config import Side, TensorSpec, load_qconfig
from sparsebit.config.quantization.plugins import OBSERVER_RULES, STATIC_A, NameRule
from sparsebit.errors import ConfigError, PlugInError, RegistryError, SparsebitError
from sparsebit.numerics import CodeType, Layout
from sparsebit.quantization.observers import (
    ACIQ,
    MSE,
    OBSERVERS,
    CalibrationError,
    KLHistogram,
    MinMax,
    MovingAverage,
    Observer,
    Percentile,
    Range,
    observe,
    register_observer,
)
from sparsebit.quantization.observers.base import extremes, require_finite
from sparsebit.quantization.quantizers import Uniform
from tests.config.strategies import activations, plain_config


def test_the_names_of_configurations_are_there() -> None:
    assert sorted(OBSERVERS) == ["aciq", "kl_histogram", "minmax", "moving_average", "mse", "percentile"]
    assert OBSERVERS["MINMAX"] is MinMax


@pytest.mark.usefixtures("clean")
def test_observers_of_others_register_and_are_used() -> None:
    @register_observer("median")
    @dataclass(frozen=True)
    class Median(Observer[Range]):
        """The median of the last batch, for the sake of an example."""

        def init(self, x: Tensor) -> Range:
            return Range(x.new_zeros(len(x)), x.new_zeros(len(x)))

        def update(self, state: Range, x: Tensor) -> Range:
            return Range(state.lo, x.median(1).values)

        def merge(self, a: Range, b: Range) -> Range:
            return b

        def finish(self, state: Range, grid: CodeType) -> Range:
            return state

    found = observe(OBSERVERS["median"](), torch.tensor([[1.0, 2.0, 9.0]]), CodeType.of())
    assert found.hi.tolist() == [2.0]
    with pytest.raises(RegistryError, match="observer 'median' is already taken"):
        register_observer("median")(Median)
    register_observer("median", replace=True)(Median)


@pytest.fixture
def clean() -> Iterator[None]:
    """Take out again what a test registers."""
    before = set(OBSERVERS)
    yield
    for name in set(OBSERVERS) - before:
        OBSERVERS.remove(name)


@pytest.mark.usefixtures("clean")
def test_the_name_may_be_an_attribute_of_the_class() -> None:
    @register_observer
    @dataclass(frozen=True, kw_only=True)
    class Wider(MinMax):
        TYPE = "Some-What wider"
        factor: float = 1.5

    assert OBSERVERS["somE_whaT_wider"] is Wider
    side = activations(OBSERVER={"TYPE": "some-what WIDER", "OPTIONS": {"factor": 2}})
    spec = load_qconfig(plain_config(A=side)).spec_for("A", names=["conv"], op="conv2d")
    assert OBSERVERS[spec.observer](**spec.observer_options) == Wider(factor=2)
    with pytest.raises(ConfigError, match=r"(?s)OPTIONS\.facotr: .*did you mean 'factor'"):
        load_qconfig(plain_config(A=activations(OBSERVER={**side["OBSERVER"], "OPTIONS": {"facotr": 2}})))
    with pytest.raises(ConfigError, match="measured in advance"):
        load_qconfig(plain_config(A=side | {"QSCHEME": "per-token-symmetric"}))


@pytest.mark.usefixtures("clean")
def test_where_it_can_be_used_is_known_from_what_it_is() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Slower(MovingAverage):
        ema_ratio: float = 0.99

    register_observer("slower")(Slower)
    assert OBSERVER_RULES["slower"].schemes == {"A": STATIC_A}
    register_observer("slower", replace=True, rule=NameRule(schemes={"A": ("per-tensor-affine",)}))(Slower)
    assert OBSERVER_RULES["slower"].schemes == {"A": ("per-tensor-affine",)}
    register_observer("slower", replace=True)(Slower)  # says nothing new, except for its options
    assert OBSERVER_RULES["slower"].schemes == {"A": ("per-tensor-affine",)}
    assert OBSERVER_RULES["slower"].option_names == ("ema_ratio",)

    class Plain(MinMax):
        def __init__(self, factor: float = 2) -> None:
            self.factor = factor

    register_observer("plain")(Plain)
    assert OBSERVER_RULES["plain"].options is None  # unknown, so none is refused


@pytest.mark.parametrize("name", sorted(OBSERVERS))
def test_a_configuration_may_give_every_field(name: str) -> None:
    """The table of the configuration, which imports no torch, says the same as the classes."""
    assert OBSERVER_RULES[name].option_names == tuple(field.name for field in fields(OBSERVERS[name]))


def test_what_cannot_be_registered() -> None:
    with pytest.raises(RegistryError, match=r"(?s)Nameless has no name .*an attribute TYPE"):

        @register_observer
        class Nameless(MinMax):
            pass

    with pytest.raises(RegistryError, match="Old is not an observer: it has no finish, init, merge, update"):

        @register_observer  # type: ignore[type-var]
        class Old:
            TYPE = "old"

            def calc_minmax(self) -> None: ...

    with pytest.raises(RegistryError, match="observer 'kl_histogram' is already taken"):
        register_observer("KL")(MinMax)
    assert "old" not in OBSERVERS
    assert "old" not in OBSERVER_RULES


def test_a_whole_tensor_is_observed_by_the_way_made_for_it() -> None:
    x = torch.tensor([[-1.0, 1.0, 1.0, 1.05]])
    assert observe(MSE(), x, CodeType.of(bits=2)) == MSE().observe(x, CodeType.of(bits=2))
    assert observe(MinMax(), x, CodeType.of()).hi.tolist() == [pytest.approx(1.05)]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: MovingAverage(ema_ratio=1.0), "at least 0 and less than 1"),
        (lambda: Percentile(alpha=-0.1), "at least 0 and less than 1"),
        (lambda: Percentile(bins=1000), "a power of two from 64 to 8192"),
        (lambda: Percentile(bins=1024.0), "a power of two"),  # type: ignore[arg-type]
        (lambda: MSE(steps="many"), "an integer of at least 1"),  # type: ignore[arg-type]
        (lambda: KLHistogram(candidates=1.5), "an integer"),  # type: ignore[arg-type]
        (lambda: MSE(steps=0), "an integer of at least 1"),
        (lambda: MSE(steps=200), r"shrink \* \(steps - 1\) < 1"),
        (lambda: KLHistogram(candidates=0), "at least 1"),
        (lambda: ACIQ(distribution="gauss"), "gaus or laplace"),  # type: ignore[arg-type]
    ],
)
def test_settings_are_checked(make: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


def test_settings_do_not_change() -> None:
    with pytest.raises(AttributeError):
        Percentile().alpha = 0.5  # type: ignore[misc]
    assert ACIQ(distribution="LAPLACE") == ACIQ(distribution="laplace")  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(1, 50), (3, 50), (2, 4, 50), (1, 1, 50)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64, torch.int32])
def test_extremes_of_any_shape(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 5).to(dtype)
    lo, hi = extremes(x)
    assert lo.shape == hi.shape == shape[:-1]
    assert lo.equal(x.amin(-1).to(lo.dtype))
    assert hi.equal(x.amax(-1).to(lo.dtype))


def test_the_error_names_row_and_values() -> None:
    x = torch.ones(3, 2, 4)
    x[1, 1, 2] = torch.nan
    with pytest.raises(CalibrationError) as caught:
        require_finite(x)
    assert isinstance(caught.value, SparsebitError)
    assert caught.value.row == 1
    assert str(caught.value) == (
        "row 1 of 3 holds values that are not finite\n"
        "  got:  1 NaN and 0 infinite among 8 values\n"
        "  next: look at the data and the weights; a float16 model may also have overflowed"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        (-1.0, 1.0),
        Range(torch.tensor([-1.0, torch.nan]), torch.ones(2)),
        Range(-torch.ones(2), torch.tensor([1.0, torch.inf])),
        Range(torch.ones(2), -torch.ones(2)),
        Range(torch.ones(2), 2 * torch.ones(2)),
        Range(-torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)),
        Range(-torch.ones(3), torch.ones(3)),
        Range(torch.tensor(-1.0), torch.tensor(1.0)),
    ],
)
def test_what_is_not_a_range_is_refused(wrong: Any) -> None:
    class Wrong(MinMax):
        def finish(self, state: Range, code: CodeType) -> Range:
            return wrong  # type: ignore[no-any-return]

    with pytest.raises(
        SparsebitError, match=r"the observer Wrong did not return a range[\s\S]*tensors \[2\]"
    ):
        observe(Wrong(), torch.randn(2, 8), CodeType())
    quantizer = Uniform("x", "A", TensorSpec(granularity="channel"), Layout(kind="channel", axes=(1,)))
    quantizer.observer = Wrong()
    quantizer.observe(torch.zeros(0, 2))  # an empty batch comes first
    quantizer.observe(torch.randn(8, 2))
    with pytest.raises(SparsebitError, match="the observer Wrong did not return a range"):
        quantizer.finish()


def test_a_range_has_the_dtype_that_its_tensor_is_computed_in() -> None:
    class Double(MinMax):
        def finish(self, state: Range, code: CodeType) -> Range:
            return Range(state.lo.double().clamp(max=0), state.hi.double().clamp(min=0))

    for dtype, wide in ((torch.float16, torch.float32), (torch.float64, torch.float64)):
        assert observe(Double(), torch.randn(2, 8, dtype=dtype), CodeType()).lo.dtype == wide


class Mine(MinMax):
    """An observer with a mistake, set by each case."""


@pytest.mark.parametrize(
    ("method", "wrong", "told"),
    [
        ("update", lambda self, state, x: None, "the observer Mine did not return a state"),
        ("update", lambda self, state, x: (1.0, 2.0), "the observer Mine did not return a state"),
        (
            "update",
            lambda self, state, x: len(3),
            r"failed on 'x': TypeError: .*\n  where: line \d+ of .*test_base",
        ),
        (
            "update",
            lambda self, state, x: Range(x.zero_()[:, 0], x[:, 0]),
            "failed on 'x': it wrote into a tensor",
        ),
        ("finish", lambda self, state, code: [][3], "failed on 'x': IndexError"),
        ("fields_to_check", lambda self, state: None, "failed on 'x': TypeError"),
    ],
)
@pytest.mark.parametrize("side", ["W", "A"])
def test_mistakes_of_an_observer_are_reported_as_its_own(
    monkeypatch: pytest.MonkeyPatch, side: Side, method: str, wrong: Any, told: str
) -> None:
    """A TypeError would be taken for one of the model, and no state for no data."""
    monkeypatch.setattr(Mine, method, wrong)
    quantizer = Uniform("x", side, TensorSpec())
    quantizer.observer = Mine()
    with pytest.raises(PlugInError, match=told):
        if side == "W":
            quantizer.observe_whole(torch.ones(2, 3))
        quantizer.observe(torch.ones(2, 3))
        quantizer.fields_to_check()
        quantizer.finish()
