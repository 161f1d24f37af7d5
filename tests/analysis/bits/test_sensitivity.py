"""Sensitivities: what is measured is what happens, and the curvature estimates agree with it."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis import FLOAT, Agreement, Curvature, sensitivity
from sparsebit.analysis.bits.curvature import CurvatureKind
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel, parse_qconfig
from tests.analysis.bits.nets import CONFIG, FAST, measured


def test_it_is_the_error_of_the_model_with_one_weight_quantized(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    found = measured(net, batches, bits=(2, 8))
    only_inner = parse_qconfig(
        CONFIG, ["A.QUANTIZER.BIT=0", "W.QUANTIZER.BIT=0", "W.SPECIFIC={inner: {QUANTIZER.BIT: 2}}"]
    )
    qmodel = QuantModel(net, only_inner, example_inputs=(batches[0][0],))
    qmodel.calibrate(batches, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    with torch.no_grad():
        pairs = [Agreement.of(net(x), qmodel(x)) for x, _ in batches]
    assert found.errors["inner.weight"][2] == pytest.approx(sum(pairs, Agreement()).relative, rel=1e-3)


@pytest.mark.parametrize("metric", ["output", "fisher", "hessian"])
def test_more_bits_lose_less(net: nn.Module, batches: list[tuple[Tensor, Tensor]], metric: str) -> None:
    found = measured(net, batches, metric=metric, sides=("W", "A"))
    for by in found.errors.values():
        assert by[2] > by[4] > by[8] > by[16] >= by[FLOAT] == 0


@pytest.mark.parametrize("metric", ["fisher", "hessian"])
def test_curvature_predicts_the_error_of_the_outputs(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]], metric: CurvatureKind
) -> None:
    true = measured(net, batches, bits=(8,), sides=("W", "A"))
    guess = measured(net, batches, bits=(8,), sides=("W", "A"), metric=Curvature(kind=metric, samples=30))
    ratios = [guess.errors[name][8] / true.errors[name][8] for name in true.errors]
    assert all(0.2 < ratio < 5 for ratio in ratios), ratios


@pytest.mark.parametrize("metric", ["fisher", "hessian"])
def test_a_loss_may_be_given(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]], metric: CurvatureKind
) -> None:
    found = measured(net, batches, bits=(4,), metric=Curvature(kind=metric, loss=nn.functional.cross_entropy))
    assert all(by[4] >= 0 for by in found.errors.values()) and any(by[4] > 0 for by in found.errors.values())


def test_a_loss_that_is_linear_in_every_tensor_has_no_curvature() -> None:
    metric = Curvature(kind="hessian", loss=lambda output, *_: output.sum())
    layer, data = nn.Linear(3, 2), [torch.ones(2, 3)]
    found = sensitivity(layer, CONFIG, data, example_inputs=data[0], bits=(4,), metric=metric, progress=False)
    assert found.errors == {"weight": {4: 0.0}}


def test_it_is_the_same_every_time_and_changes_nothing(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    flags = [p.requires_grad for p in net.parameters()]
    found = [measured(net, batches, bits=(4,), metric=Curvature(seed=3)).errors for _ in range(2)]
    assert found[0] == found[1]
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert flags == [p.requires_grad for p in net.parameters()]
    assert all(p.grad is None for p in net.parameters())


def test_widths_a_target_cannot_run_are_left_out(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    config = parse_qconfig("int8_onnxruntime", ["DEVICE=cpu", *FAST])
    found = sensitivity(net, config, batches, example_inputs=(batches[0][0],), progress=False)
    assert set(found.errors["stem.weight"]) == {2, 4, 8, FLOAT}  # 16 is none of ONNX Runtime's
    with pytest.raises(SparsebitError, match="supports none of the requested widths"):
        sensitivity(net, config, batches, example_inputs=(batches[0][0],), bits=(16,))


class Classes(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).argmax(1)


def test_mistakes_are_told(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    with pytest.raises(SparsebitError, match="no curvature 'hesse'"):
        Curvature(kind="hesse")  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match="samples: expected 1 or more"):
        Curvature(samples=0)
    with pytest.raises(SparsebitError, match="seed: expected 0 or more"):
        Curvature(seed="1")  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match=r"sides: expected some of 'W' and 'A'"):
        measured(net, batches, sides=("weights",))
    with pytest.raises(SparsebitError, match="the loss does not depend on any quantized tensor"):
        measured(net, batches, metric=Curvature(loss=lambda *_: torch.ones((), requires_grad=True)))
    with pytest.raises(SparsebitError, match=r"the error of 'stem.weight' at 2 bits is not a finite number"):
        measured(net, batches, metric=Curvature(loss=lambda output, *_: output.sum() * torch.nan))
    with pytest.raises(SparsebitError, match="no metric 'hesse'"):
        measured(net, batches, metric="hesse")
    with pytest.raises(SparsebitError, match="gave no batch"):
        sensitivity(net, CONFIG, [], example_inputs=(batches[0][0],))
    off = parse_qconfig(CONFIG, ["W.QUANTIZER.BIT=0"])
    with pytest.raises(SparsebitError, match="returns no floating-point numbers"):
        measured(Classes(net).eval(), batches, bits=(8,))
    with pytest.raises(SparsebitError, match="nothing to choose bits for"):
        sensitivity(net, off, batches, example_inputs=(batches[0][0],))


def test_it_prints_and_is_json(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    found = measured(net, batches, bits=(4, 8))
    assert "4 bits" in str(found) and "inner.weight" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["choices"][0]["name"] == "stem.weight"
