"""The error profile against numbers worked out another way."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis import Agreement, profile
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.checkpoint import take_floats
from tests.analysis.profiling.nets import quantized


def test_batches_add_up_to_what_one_large_batch_gives(net: nn.Module, batches: list[Tensor]) -> None:
    qmodel = quantized(net, batches)
    parts, whole = profile(qmodel, batches), profile(qmodel, torch.cat(batches))
    assert (parts.batches, whole.batches) == (3, 1)
    for a, b in zip(parts.layers, whole.layers, strict=True):
        assert a.name == b.name
        assert a.alone.sqnr_db == pytest.approx(b.alone.sqnr_db, abs=1e-3)
        assert a.together.mse == pytest.approx(b.together.mse, rel=1e-3)


def test_layers_agree_with_get_quantization_error(net: nn.Module, batches: list[Tensor]) -> None:
    qmodel = quantized(net, batches)
    errors = profile(qmodel, batches[0])
    for is_async, pick in ((True, "alone"), (False, "together")):
        expected = qmodel.get_quantization_error(batches[0], is_async=is_async)
        found = {layer.name: getattr(layer, pick).mse for layer in errors.layers}
        assert found == pytest.approx({name: float(value) for name, value in expected.items()}, rel=1e-4)


def test_errors_gather_on_the_way(net: nn.Module, batches: list[Tensor]) -> None:
    errors = profile(quantized(net, batches), batches)
    first, head = errors.layer("first"), errors.layer("head")
    assert first.alone == first.together  # nothing stands before it
    assert head.together.noise > head.alone.noise
    assert errors.output.sqnr_db > 20
    assert "softmax" in errors.left_float


def test_the_output_is_that_of_the_model(net: nn.Module, batches: list[Tensor]) -> None:
    qmodel = quantized(net, batches)
    errors = profile(qmodel, batches[0])
    qmodel.set_quant(w_quant=True, a_quant=True)
    with torch.no_grad():
        expected = Agreement.of(net(batches[0]), qmodel(batches[0]))
    assert errors.output.sqnr_db == pytest.approx(expected.sqnr_db, abs=1e-3)


def test_without_the_float_weights_it_says_what_is_missing(
    net: nn.Module, batches: list[Tensor], tmp_path: Path
) -> None:
    qmodel = quantized(net, batches)
    expected = profile(qmodel, batches).to_dict()
    qmodel.save(tmp_path / "saved")
    qmodel.freeze()
    loaded = QuantModel.load(tmp_path / "saved", net)
    for rounded in (qmodel, loaded):
        with pytest.warns(UserWarning, match="profile shows the errors of the activations alone"):
            errors = profile(rounded, batches)
        weights = [tensor for tensor in errors.tensors if tensor.side == "W"]
        assert weights and all(tensor.agreement.sqnr_db == math.inf for tensor in weights)
    before = loaded(batches[0])
    take_floats(loaded, net)
    assert profile(loaded, batches).to_dict() == expected and torch.equal(loaded(batches[0]), before)


def test_no_data_and_no_calibration_are_said(net: nn.Module, batches: list[Tensor]) -> None:
    qmodel = quantized(net, batches)
    with pytest.raises(SparsebitError, match="gave no batch"):
        profile(qmodel, [])
    fresh = QuantModel(net, "int8_onnxruntime", example_inputs=(batches[0],))
    with pytest.raises(SparsebitError, match="not calibrated"):
        profile(fresh, batches)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        return self.c(h + self.b(h))


def test_every_number_is_that_of_the_definition_in_double_precision() -> None:
    """4-bit weights and 5-bit inputs with clipping, worked out by hand: quantize, multiply, compare."""
    torch.manual_seed(0)
    net, batches = Residual().eval(), [torch.randn(32, 6) for _ in range(3)]
    batches[0][0, 0] = 9.0
    sides = {
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 4}, "OBSERVER": {"TYPE": "minmax"}},
        "A": {
            "QSCHEME": "per-tensor-affine",
            "QUANTIZER": {"BIT": 5},
            "OBSERVER": {"TYPE": "percentile", "PERCENTILE": {"ALPHA": 0.01}},
        },
    }
    qmodel = QuantModel(net, {"BACKEND": "virtual", "DEVICE": "cpu", **sides}, (batches[0],))
    qmodel.calibrate(batches, progress=False)
    found = profile(qmodel, batches)

    def grid(name: str) -> tuple[Tensor, Tensor, int, int]:
        qp = qmodel.quantizers[name].grid()
        shape = (-1, 1) if name.endswith("weight") else (-1,)
        return qp.scale.double().view(shape), qp.zero_point.double().view(shape), qp.code.low, qp.code.high

    def snap(name: str, x: Tensor) -> Tensor:
        scale, zero, low, high = grid(name)
        return ((x / scale).round().add(zero).clamp(low, high) - zero) * scale

    def linear(name: str, x: Tensor, weight: Tensor) -> Tensor:
        bias = net.get_parameter(f"{name}.bias").detach().double()
        return x @ weight.T + bias

    weights = {name: net.get_parameter(f"{name}.weight").detach().double() for name in "abc"}
    coarse = {name: snap(f"{name}.weight", weight) for name, weight in weights.items()}
    x = torch.cat(batches).double()
    exact = {"a": linear("a", x, weights["a"])}
    h = exact["a"].relu()
    exact["b"] = linear("b", h, weights["b"])
    total = h + exact["b"]
    exact["c"] = linear("c", total, weights["c"])
    alone = {
        "a": linear("a", snap("x", x), coarse["a"]),
        "b": linear("b", snap("relu", h), coarse["b"]),
        "c": linear("c", snap("add", total), coarse["c"]),
    }
    together = {"a": alone["a"]}
    behind = together["a"].relu()
    together["b"] = linear("b", snap("relu", behind), coarse["b"])
    together["c"] = linear("c", snap("add", behind + together["b"]), coarse["c"])

    def measures(true: Tensor, got: Tensor) -> list[float]:
        noise = (true - got).square()
        ratio = true.square().sum() / noise.sum()
        cosine = (true * got).sum() / true.norm() / got.norm()
        return [10 * math.log10(ratio), float(cosine), float(noise.mean())]

    for layer in found.layers:
        for seen, by_hand in ((layer.alone, alone), (layer.together, together)):
            expected = measures(exact[layer.name], by_hand[layer.name])
            assert [seen.sqnr_db, seen.cosine, seen.mse] == pytest.approx(expected, rel=1e-4)
    assert found.output.sqnr_db == pytest.approx(measures(exact["c"], together["c"])[0], rel=1e-4)
    streams = {"x": x, "relu": h, "add": total, **{f"{name}.weight": w for name, w in weights.items()}}
    for tensor in found.tensors:
        value, (scale, zero, low, high) = streams[tensor.name], grid(tensor.name)
        beyond = (value < (low - 0.5 - zero) * scale) | (value > (high + 0.5 - zero) * scale)
        assert tensor.clipped == pytest.approx(float(beyond.double().mean()))
        assert (tensor.lo, tensor.hi) == pytest.approx((float(value.min()), float(value.max())), rel=1e-5)
        assert tensor.agreement.sqnr_db == pytest.approx(
            measures(value, snap(tensor.name, value))[0], rel=1e-4
        )
    assert any(tensor.clipped > 0 for tensor in found.tensors)
