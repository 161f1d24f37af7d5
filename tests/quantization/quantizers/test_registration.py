"""Quantizers by name: those of users are found, and names or classes that cannot be are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsebit.config import TensorSpec
from sparsebit.errors import PlugInError, RegistryError
from sparsebit.quantization import QUANTIZERS, Quantizer, QuantModel, register_quantizer
from sparsebit.quantization.quantizers import Uniform
from tests.quantization.nets import config, images, residual


@pytest.fixture
def halved() -> Iterator[type[Quantizer]]:
    @register_quantizer
    class Halved(Uniform):
        TYPE = "Half-Range"

        def set_range(self, lo: Tensor, hi: Tensor, x: Tensor | None) -> None:
            super().set_range(lo / 2, hi / 2, x)

    yield Halved
    QUANTIZERS.remove("half_range")


def test_a_registered_quantizer_is_used_by_name_in_any_spelling(halved: type[Quantizer]) -> None:
    qmodel = QuantModel(residual(), config(A__QUANTIZER={"TYPE": "half-range", "BIT": 8}), images())
    assert all(type(q) is halved for q in qmodel.quantizers.values() if q.side == "A")
    qmodel.calibrate([images()], progress=False)
    plain = QuantModel(residual(), config(), images())
    plain.calibrate([images()], progress=False)
    torch.testing.assert_close(qmodel.quantizers["x"].scale * 2, plain.quantizers["x"].scale)


def test_a_name_that_is_taken_or_missing_is_refused(halved: type[Quantizer]) -> None:
    with pytest.raises(RegistryError, match="'half_range'"):
        register_quantizer(halved)
    assert register_quantizer(halved, replace=True) is halved

    class Nameless(Quantizer):
        pass

    with pytest.raises(RegistryError, match="Nameless has no name to register it under"):
        register_quantizer(Nameless)
    with pytest.raises(RegistryError, match="quantizer 'lsq\\+' is already taken"):
        register_quantizer(name="lsq_plus")(halved)  # another spelling
    assert QUANTIZERS["lsq_plus"] is not halved


def test_a_quantizer_with_the_methods_of_the_old_toolkit_is_refused() -> None:
    """Nothing would call them, and the class would quantize as if they were not there."""
    with pytest.raises(
        RegistryError, match=r"nothing here calls its _forward\n  next: write set_range, prepare or grid"
    ):

        @register_quantizer
        class Old(Uniform):
            TYPE = "old_style"

            def _forward(self, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
                return x

    assert "old_style" not in QUANTIZERS


def _refuse(name: str) -> Any:
    return {
        "raises": {"set_range": lambda self, lo, hi, x: 1 / 0},
        "numbers": {"set_range": lambda self, lo, hi, x: self.set_grid(0.1, 0)},
        "no grid": {"scale_and_zero_point": lambda self, x=None: self.scale[:1]},
        "shape": {"prepare": lambda self, x: x[..., :1]},
        "dtype": {"snap": lambda self, x: x.double()},
        "nothing": {"snap": lambda self, x: None},
        "in place": {"prepare": lambda self, x: x.detach().mul_(0.5)},
    }[name]


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            "raises",
            r"or the quantizer 'mine' failed on 'conv1.weight': ZeroDivisionError: .*\n  where: line \d+ of",
        ),
        ("numbers", "or the quantizer 'mine' failed on 'conv1.weight': AttributeError"),
        ("no grid", "the quantizer of 'conv1.weight' gave no grid: ValueError"),
        ("shape", r"the quantizer 'mine' of 'conv1.weight' did not return a tensor like its input"),
        (
            "dtype",
            r"the quantizer 'mine' of 'conv1.weight' did not return .*\n  expected: torch.float32 of shape",
        ),
        ("nothing", r"the quantizer 'mine' of 'conv1.weight' did not return .*\n.*\n  got: +None"),
        ("in place", "failed on 'conv1.weight': it wrote into a tensor that it was only to read"),
    ],
)
def test_mistakes_of_a_quantizer_are_reported_as_its_own(wrong: str, told: str) -> None:
    register_quantizer(name="mine")(type("Mine", (Quantizer,), _refuse(wrong)))
    try:
        qmodel = QuantModel(residual(), config(W__QUANTIZER={"TYPE": "mine", "BIT": 8}), images())
        with pytest.raises(PlugInError, match=told):
            qmodel.calibrate([images()], progress=False)
            qmodel(images())
    finally:
        QUANTIZERS.remove("mine")


def test_a_class_that_cannot_be_called_as_a_quantizer_is_refused() -> None:
    with pytest.raises(
        RegistryError, match=r"Mine.set_range cannot be called[\s\S]*def set_range\(self, lo, hi, x\)"
    ):
        register_quantizer(name="mine")(type("Mine", (Quantizer,), {"set_range": lambda self, lo, hi: None}))
    with pytest.raises(RegistryError, match="Mine overrides forward"):
        register_quantizer(name="mine")(type("Mine", (Quantizer,), {"forward": lambda self, x: x}))
    with pytest.raises(RegistryError, match="is not the class of a quantizer"):
        register_quantizer(name="mine")(QUANTIZERS["uniform"]("x", "A", TensorSpec()))
    assert "mine" not in QUANTIZERS
