"""What every registered quantizer must do, and what the base promises to those to come."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from sparsebit.config import Side, TensorSpec
from sparsebit.config.quantization.plugins import QUANTIZER_RULES
from sparsebit.errors import ConfigError, SparsebitError
from sparsebit.numerics.layout import Layout, row_blocks
from sparsebit.quantization import QUANTIZERS, Quantizer
from sparsebit.quantization.quantizers import Uniform
from sparsebit.targets.schemes import NumberFormat
from tests.quantization.quantizers.learning import calibrated

SIDES: tuple[Side, ...] = ("W", "A")
CASES = [
    pytest.param(name, side, scheme, id=f"{name}-{side}-{scheme}")
    for name in sorted(QUANTIZERS)
    for side in SIDES
    for scheme in QUANTIZER_RULES[name].schemes.get(side, ())
]


def make(name: str, side: Side, scheme: str, **changes: Any) -> Quantizer:
    _, granularity, symmetry = scheme.split("-")
    spec = TensorSpec(
        quantizer=name,
        granularity=granularity,  # type: ignore[arg-type]
        symmetric=symmetry == "symmetric",
        group_size=4 if granularity == "group" else None,
        **changes,
    )
    return QUANTIZERS[name]("it", side, spec)


@pytest.mark.parametrize(("name", "side", "scheme"), CASES)
def test_results_lie_on_a_grid_that_was_asked_for(name: str, side: Side, scheme: str) -> None:
    x = torch.randn(6, 10, 3, 3)
    quantizer = make(name, side, scheme, bits=4)
    assert not quantizer.calibrated or quantizer.layout.kind == "token"
    assert torch.equal(quantizer(x), x), "off until it is switched on"
    calibrated(quantizer, x)
    with torch.no_grad():
        got = quantizer(x)
    assert got.shape == x.shape and got.isfinite().all()
    for block in row_blocks(got, quantizer.layout_of(x)):
        assert all(len(row.unique()) <= 16 for row in block), "more codes than 4 bits have"
    assert quantizer.is_enable and quantizer.name in quantizer.describe()
    twin = copy.deepcopy(quantizer)
    with torch.no_grad():
        assert torch.equal(twin(x), got)
        if side == "A":
            assert quantizer(torch.empty(0, 10, 3, 3)).shape == (0, 10, 3, 3)


@pytest.mark.parametrize(("name", "side", "scheme"), CASES)
def test_its_state_loads_into_a_fresh_one(name: str, side: Side, scheme: str) -> None:
    x = torch.randn(6, 10)
    quantizer = calibrated(make(name, side, scheme), x)
    fresh = make(name, side, scheme)
    fresh.load_state_dict(quantizer.state_dict())
    fresh.enable_quant()
    with torch.no_grad():
        assert torch.equal(fresh(x), quantizer(x))


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_eight_bit_floats(dtype: NumberFormat) -> None:
    x = torch.randn(8, 16)
    quantizer = calibrated(make("uniform", "W", "per-channel-symmetric", dtype=dtype), x)
    kind = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}[dtype]
    scale = x.abs().amax(1, keepdim=True) / torch.finfo(kind).max
    torch.testing.assert_close(quantizer(x), (x / scale).to(kind).float() * scale)


@pytest.mark.parametrize("bits", range(2, 17))
@pytest.mark.parametrize("symmetric", [True, False])
def test_every_width(bits: int, symmetric: bool) -> None:
    x = torch.randn(1000)
    scheme = "per-tensor-symmetric" if symmetric else "per-tensor-affine"
    quantizer = calibrated(make("uniform", "A", scheme, bits=bits), x)
    assert (quantizer(x) - x).abs().max() <= quantizer.scale * 0.501
    assert len(quantizer(x).unique()) <= 2**bits


def test_tokens_get_a_scale_as_they_come() -> None:
    quantizer = make("uniform", "A", "per-token-symmetric")
    quantizer.enable_quant()
    x = torch.randn(3, 5, 7) * torch.logspace(-3, 3, 5).view(1, 5, 1)
    scale = x.abs().amax(-1, keepdim=True) / 127
    torch.testing.assert_close(quantizer(x), (x / scale).round() * scale)
    assert quantizer(x[:1, :2]).shape == (1, 2, 7)


def test_another_width_asks_for_another_round() -> None:
    quantizer = calibrated(make("uniform", "A", "per-tensor-affine"), torch.randn(8))
    quantizer.set_bit(8)
    assert quantizer.calibrated, "nothing changed"
    quantizer.set_bit(4)
    assert quantizer.bit == 4 and not quantizer.calibrated and not quantizer.is_enable
    with pytest.raises(SparsebitError, match=r"no scale yet(.|\n)*after set_bit\(\), calibrate again"):
        quantizer.enable_quant()
    for bits in (0, 1, 17):
        with pytest.raises(ConfigError, match="bits from 2 to 16"):
            quantizer.set_bit(bits)


def test_what_is_fused_stays_off() -> None:
    quantizer = calibrated(make("uniform", "A", "per-tensor-affine"), torch.randn(8))
    quantizer.set_fake_fused()
    x = torch.randn(8)
    assert not quantizer.is_enable and torch.equal(quantizer(x), x)


def test_it_follows_to_a_device_but_not_to_a_precision() -> None:
    quantizer = calibrated(make("uniform", "A", "per-tensor-affine", bits=16), torch.randn(100))
    scale, zero_point = quantizer.scale.clone(), quantizer.zero_point.clone()
    for cast in (torch.float16, torch.bfloat16, torch.float64):
        quantizer.to(cast)
        assert torch.equal(quantizer.scale, scale) and torch.equal(quantizer.zero_point, zero_point)
    assert quantizer.to("meta").scale.is_meta


def test_no_data_and_empty_data_are_told_apart() -> None:
    quantizer = make("uniform", "A", "per-tensor-affine")
    with pytest.raises(SparsebitError, match=r"'it' received no data(.|\n)*no batch"):
        quantizer.finish()
    quantizer.observe(torch.empty(0, 3))
    assert not quantizer.has_seen
    with pytest.raises(SparsebitError, match="1 empty ones"):
        quantizer.finish()


def test_groups_of_a_ragged_last_size() -> None:
    x = torch.randn(3, 10)
    quantizer = QUANTIZERS["uniform"](
        "it", "W", TensorSpec(bits=4, granularity="group", group_size=4), Layout(kind="group", group_size=4)
    )
    calibrated(quantizer, x)
    for start, stop in ((0, 4), (4, 8), (8, 10)):
        part = x[:, start:stop]
        scale = part.abs().amax(1, keepdim=True) / 7
        expected = (part / scale).round().clamp(-8, 7) * scale
        torch.testing.assert_close(quantizer(x)[:, start:stop], expected)


# -- plug-ins -------------------------------------------------------------------------------------------------------


def test_complex_numbers_are_refused_with_their_batch() -> None:
    quantizer = Uniform("x", "A", TensorSpec(observer="percentile"))
    quantizer.observe(torch.randn(4))
    with pytest.raises(SparsebitError, match=r"(?s)'x' holds complex numbers.*batch 2.*SPECIFIC"):
        quantizer.observe(torch.randn(4, dtype=torch.complex64))
