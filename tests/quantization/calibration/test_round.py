"""Grids against a second, slower way to find them. In several processes: ``test_ranks.py``."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.quantization import Quantizer, QuantModel
from sparsebit.quantization.observers import CalibrationError
from tests.quantization.nets import config, images, residual

BATCHES = tuple(images(3, seed) * (1 + seed) for seed in range(3))


def by_hand(asym: bool, w_quant: bool, a_quant: bool) -> dict[str, tuple[float, float]]:
    """Scale and zero point of every activation, by running the whole model again for each of them."""
    qmodel = QuantModel(residual(), config(), images())
    weights = {name: q for name, q in qmodel.quantizers.items() if q.side == "W"}
    for name, quantizer in weights.items():
        weight = qmodel.model.get_submodule(name.removesuffix(".weight")).weight.detach().double()
        scale = weight.flatten(1).abs().amax(1) / 127
        quantizer.set_grid(scale.float(), torch.zeros(len(scale)))
        quantizer.use_quant = asym and w_quant
    found: dict[str, tuple[float, float]] = {}
    activations = [q for node in qmodel.model.graph.nodes if (q := activation_quantizer(qmodel, node.target))]
    for quantizer in activations:
        seen: list[Tensor] = []
        hook = quantizer.register_forward_hook(lambda _, inputs, __, seen=seen: seen.append(inputs[0]))
        for batch in BATCHES:
            with torch.no_grad():
                qmodel(batch)
        hook.remove()
        values = torch.cat([value.double().flatten() for value in seen])
        lo, hi = min(values.min().item(), 0.0), max(values.max().item(), 0.0)
        scale = (hi - lo) / 255
        found[quantizer.name] = scale, round(-lo / scale)
        quantizer.set_grid(torch.tensor([scale]), torch.tensor([float(round(-lo / scale))]))
        quantizer.use_quant = asym and a_quant
    return found


def activation_quantizer(qmodel: QuantModel, target: object) -> Quantizer | None:
    module = dict(qmodel.model.named_modules()).get(str(target))
    return module if isinstance(module, Quantizer) and module.side == "A" else None


@pytest.mark.parametrize(
    ("asym", "w_quant", "a_quant"),
    [
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, False, True),
        (True, True, True),
    ],
)
def test_grids_are_those_of_a_second_way_to_find_them(asym: bool, w_quant: bool, a_quant: bool) -> None:
    qmodel = QuantModel(residual(), config(), images())
    qmodel.calibrate(BATCHES, asym=asym, w_quant=w_quant, a_quant=a_quant, progress=False)
    expected = by_hand(asym, w_quant, a_quant)
    assert set(expected) == {tensor.name for tensor in qmodel.plan.activations()}
    for name, (scale, zero_point) in expected.items():
        quantizer = qmodel.quantizers[name]
        assert quantizer.scale.item() == pytest.approx(scale, rel=1e-5), name
        assert quantizer.zero_point.item() == zero_point, name
    assert all(quantizer.is_enable for quantizer in qmodel.quantizers.values())


def test_what_is_quantized_in_front_changes_what_is_measured() -> None:
    cases = [(True, False, False), (True, True, False), (True, False, True), (True, True, True)]
    scales = []
    for asym, w_quant, a_quant in cases:
        qmodel = QuantModel(residual(), config(W__QUANTIZER__BIT=3, A__QUANTIZER__BIT=3), images())
        qmodel.calibrate(BATCHES, asym=asym, w_quant=w_quant, a_quant=a_quant, progress=False)
        scales.append(tuple(q.scale.item() for q in qmodel.quantizers.values() if q.side == "A"))
        assert scales[-1][0] == scales[0][0], "nothing stands in front of the input"
    assert len(set(scales)) == len(cases)
    plain = QuantModel(residual(), config(W__QUANTIZER__BIT=3, A__QUANTIZER__BIT=3), images())
    plain.calibrate(BATCHES, progress=False)
    assert tuple(q.scale.item() for q in plain.quantizers.values() if q.side == "A") == scales[0]


def test_a_caller_may_fill_the_same_tensor_again() -> None:
    qmodel, buffer = QuantModel(residual(), config(), images()), torch.empty(3, 3, 8, 8)
    qmodel.prepare_calibration()
    for batch in BATCHES:
        qmodel(buffer.copy_(batch))
    buffer.zero_()
    qmodel.calc_qparams(asym=True, w_quant=True, a_quant=True, progress=False)
    expected = by_hand(True, True, True)
    for name, (scale, _) in expected.items():
        assert qmodel.quantizers[name].scale.item() == pytest.approx(scale, rel=1e-5), name


def test_a_parameter_on_the_way_is_calibrated_in_order_too() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.randn(1, 4)), nn.Parameter(torch.randn(1, 4))
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fc(x + self.first) + self.second
            return y

    net, x = Positions().eval(), torch.randn(2, 4)
    qmodel = QuantModel(net, config(A__QADD__ENABLE_QUANT=True), x)
    assert {"first", "second", "x"} <= {tensor.name for tensor in qmodel.plan.activations()}
    qmodel.calibrate([x], asym=True, w_quant=True, a_quant=True, progress=False)
    for name in ("first", "second"):
        values = getattr(net, name).detach()
        width = values.max().clamp(min=0) - values.min().clamp(max=0)
        assert qmodel.quantizers[name].scale.item() == pytest.approx(width.item() / 255, rel=1e-6)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_bad_numbers_where_no_quantizer_looks_are_told(value: float) -> None:
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    with torch.no_grad():
        net[2].bias[1] = value
    x = torch.randn(8, 4)
    qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=(x,))
    with pytest.raises(SparsebitError, match=r"'2\.bias' of the model holds NaN or infinity"):
        qmodel.calibrate([x], progress=False)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_bad_variance_is_told_and_not_folded_away(value: float) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)
    ).eval()
    variance = net[1].running_var
    assert isinstance(variance, Tensor)
    variance[2] = value
    x = torch.randn(8, 3, 1, 1)
    qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=(x,))
    with pytest.raises(SparsebitError, match=r"'1\.running_var' of the model holds NaN or infinity"):
        qmodel.calibrate([x], progress=False)


def test_where_looking_for_bad_numbers_waits_they_are_named_at_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where asking after every batch would stop the queue: the recorded batches are run again."""
    monkeypatch.setattr("sparsebit.quantization.calibration.round.is_free_to_ask", lambda x: False)
    qmodel = QuantModel(residual(), config(), images())
    qmodel.prepare_calibration()
    for batch in (images(), images(seed=1) / 0, images(seed=2)):
        qmodel(batch)
    with pytest.raises(CalibrationError, match=r"'x' cannot be calibrated(.|\n)*batch 2 \(counted from 1\)"):
        qmodel.calc_qparams()
    qmodel.calibrate([images()], progress=False)  # and it can be calibrated with better data
    assert qmodel(images()).isfinite().all()


def test_numbers_that_are_lost_behind_quantized_layers_are_named_with_their_batch() -> None:
    """Measured in order, behind layers that are quantized: a batch that breaks there is named as well."""
    qmodel = QuantModel(residual(), config(), images())
    qmodel.prepare_calibration()
    qmodel(images())
    qmodel(images(seed=1))
    quantizer = qmodel.quantizers["x"]
    seen: list[int] = []

    def break_second(self: object, x: torch.Tensor) -> torch.Tensor:
        seen.append(len(seen))
        return x / 0 if len(seen) == 2 else x

    quantizer.substitute = break_second
    with pytest.raises(CalibrationError, match=r"cannot be calibrated(.|\n)*batch 2 \(counted from 1\)"):
        qmodel.calc_qparams(asym=True, w_quant=True, a_quant=True, progress=False)
