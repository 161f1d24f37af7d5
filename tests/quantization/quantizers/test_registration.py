"""Quantizers by name: those of users are found, and names or classes that cannot be are refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from sparsebit.errors import RegistryError
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
