"""The error profile against numbers worked out another way."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis import Agreement, ErrorProfile, profile
from sparsebit.analysis.profiling.tensor_error import TensorSums, grid_ends
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel, parse_qconfig


class Net(nn.Module):
    """Two convolutions around a skip, a softmax that the target leaves in float, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.first(images))
        x = torch.relu(x + self.second(x))
        return torch.softmax(self.head(x.mean((2, 3))), -1)


def quantized(net: nn.Module, batches: list[Tensor], *overrides: str) -> QuantModel:
    config = parse_qconfig("int8_onnxruntime", ["DEVICE=cpu", "A.OBSERVER.TYPE=minmax", *overrides])
    qmodel = QuantModel(net, config, example_inputs=(batches[0],))
    qmodel.calibrate(batches, progress=False)
    return qmodel


@pytest.fixture
def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(8, 3, 8, 8, generator=generator) for _ in range(3)]


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


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


def test_it_leaves_switches_and_mode_as_they_were(net: nn.Module, batches: list[Tensor]) -> None:
    qmodel = quantized(net, batches)
    qmodel.set_quant(w_quant=True, a_quant=False)
    qmodel.train()
    before = {name: q.use_quant for name, q in qmodel.quantizers.items()}
    profile(qmodel, batches[0])
    assert before == {name: q.use_quant for name, q in qmodel.quantizers.items()}
    assert qmodel.training
    assert not any(q._forward_pre_hooks for q in qmodel.quantizers.values())


def test_clipping_is_counted(batches: list[Tensor]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 1)).eval()
    qmodel = quantized(net, batches)
    quantizer = qmodel.quantizers["input_1"]
    wide = 3 * torch.cat(batches)  # calibrated on a third of this
    low, high = grid_ends(quantizer, wide)
    expected = ((wide < low) | (wide > high)).float().mean().item()
    found = profile(qmodel, wide).layers[0].inputs[0]
    assert found.clipped == pytest.approx(expected) and expected > 0.01
    assert found.lo == wide.min().item() and found.hi == wide.max().item()
    assert found.grid_lo == pytest.approx(torch.cat(batches).min().item(), rel=0.02)
    assert "beyond its grid" in found.why()


@pytest.mark.parametrize("scheme", ["per-tensor-affine", "per-channel-symmetric", "per-group-symmetric"])
@pytest.mark.parametrize("inputs", [16, 17])
def test_what_is_clipped_is_what_moves_by_more_than_half_a_step(scheme: str, inputs: int) -> None:
    torch.manual_seed(0)
    config = parse_qconfig(
        "w4a16_g128", ["DEVICE=cpu", "FIRST_LAST=null", f"W.QSCHEME={scheme}", "W.GROUP_SIZE=8"]
    )
    net, x = nn.Sequential(nn.Linear(inputs, 6)), torch.randn(4, inputs)
    qmodel = QuantModel(net, config, example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    quantizer, weight = qmodel.quantizers["0.weight"], 2 * net[0].weight.detach()
    sums = TensorSums(quantizer)
    sums.add(weight)
    found = sums.finish()
    low, high = grid_ends(quantizer, weight, beyond=0.0)
    step = (high - low) / 15
    moved = ((quantizer.snap(weight) - weight).abs() > 0.5 * step * (1 + 1e-5)).float().mean().item()
    assert found is not None and found.clipped == pytest.approx(moved) and moved > 0


def test_the_layer_that_is_spoilt_is_named_with_the_reason(net: nn.Module, batches: list[Tensor]) -> None:
    with torch.no_grad():
        net.second.weight[0, 0, 0, 0] = 40.0  # type: ignore[index, union-attr]
    errors = profile(quantized(net, batches, "W.QSCHEME=per-tensor-symmetric"), batches)
    advice = errors.keep_float()
    assert [item.layer for item in advice] == ["second"]
    assert "its weight keeps" in advice[0].because and "standard deviations" in advice[0].because
    assert str(advice[0]) in " ".join(str(errors).split())


def test_the_advice_applied_makes_it_better(net: nn.Module, batches: list[Tensor]) -> None:
    with torch.no_grad():
        net.second.weight[0, 0, 0, 0] = 40.0  # type: ignore[index, union-attr]
    qmodel = quantized(net, batches, "W.QSCHEME=per-tensor-symmetric")
    errors = profile(qmodel, batches)
    again = QuantModel(net, errors.apply(qmodel.cfg), example_inputs=(batches[0],))
    again.calibrate(batches, progress=False)
    better = profile(again, batches)
    assert "second.weight" not in again.quantizers
    assert better.output.sqnr_db > errors.output.sqnr_db + 6


def test_nobody_is_named_where_all_are_alike(net: nn.Module, batches: list[Tensor]) -> None:
    errors = profile(quantized(net, batches), batches)
    assert errors.keep_float() == ()
    assert "no layer stands out" in str(errors)


def test_the_dict_is_json_and_the_table_has_a_row_for_each_layer(
    net: nn.Module, batches: list[Tensor]
) -> None:
    errors = profile(quantized(net, batches), batches)
    data = json.loads(json.dumps(errors.to_dict(), allow_nan=False))
    assert [row["name"] for row in data["layers"]] == ["first", "second", "add", "head"]
    assert {"sqnr_db", "cosine", "mse"} == set(data["layers"][0]["alone"])
    assert errors.table(sort="sqnr").row_count == len(errors.layers)
    with pytest.raises(KeyError, match="no quantized layer named 'nose'"):
        errors.layer("nose")


def test_no_data_and_no_calibration_are_said(net: nn.Module, batches: list[Tensor]) -> None:
    qmodel = quantized(net, batches)
    with pytest.raises(SparsebitError, match="gave no batch"):
        profile(qmodel, [])
    fresh = QuantModel(net, "int8_onnxruntime", example_inputs=(batches[0],))
    with pytest.raises(SparsebitError, match="not calibrated"):
        profile(fresh, batches)


def test_agreement_at_its_ends() -> None:
    x = torch.ones(3)
    assert Agreement.of(x, x).sqnr_db == math.inf and Agreement.of(x, x).to_dict()["sqnr_db"] is None
    assert Agreement.of(torch.zeros(3), x).sqnr_db == -math.inf
    assert Agreement.of(x, -x).cosine == pytest.approx(-1)
    assert ErrorProfile(layers=(), tensors=(), output=Agreement()).keep_float() == ()


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
