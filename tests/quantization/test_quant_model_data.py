"""Calibration of a QuantModel on data of every kind: too little, broken, ragged, in the wrong order."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import sparsebit
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.observers import CalibrationError
from tests.quantization.nets import config, grids, images, quantized, residual


def test_steps_out_of_order_say_what_comes_first() -> None:
    qmodel = QuantModel(residual(), config(), images())
    with pytest.raises(SparsebitError, match=r"before prepare_calibration\(\)"):
        qmodel.calc_qparams()
    with pytest.raises(SparsebitError, match=r"not calibrated(.|\n)*calc_qparams"):
        qmodel.set_quant(w_quant=True, a_quant=True)
    with pytest.raises(SparsebitError, match="not calibrated"):
        qmodel.init_QAT()
    with pytest.raises(SparsebitError, match="not calibrated"):
        qmodel.get_quantization_error(images())
    with pytest.raises(SparsebitError, match="no scale yet"):
        qmodel.model.conv1.input_quantizer.enable_quant()
    torch.testing.assert_close(qmodel(images()), residual()(images()), rtol=1e-4, atol=1e-5)


def test_no_calibration_data_is_told_and_the_round_stays_open() -> None:
    qmodel = QuantModel(residual(), config(), images())
    qmodel.prepare_calibration()
    with pytest.raises(SparsebitError, match="no calibration data"):
        qmodel.calc_qparams()
    qmodel(images())
    qmodel.calc_qparams()
    qmodel.set_quant(w_quant=True, a_quant=True)
    with pytest.raises(SparsebitError, match="gave no batches"):
        qmodel.calibrate([], progress=False)
    with pytest.raises(SparsebitError, match="at least one batch"):
        qmodel.calibrate([images()], batches=0, progress=False)
    qmodel(images())  # no round is left open


def test_weights_alone_need_no_data() -> None:
    qmodel = QuantModel(residual(), config(A__QUANTIZER__BIT=0), images())
    assert not qmodel.plan.activations() and qmodel.plan.weights()
    qmodel.prepare_calibration()
    qmodel.calc_qparams()
    qmodel.set_quant(w_quant=True, a_quant=True)
    assert 0 < (qmodel(images()) - residual()(images())).abs().max() < 0.1


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_bad_numbers_in_the_data_are_named_with_tensor_and_batch(value: float) -> None:
    qmodel = QuantModel(residual(), config(), images())
    qmodel.prepare_calibration()
    qmodel(images())
    bad = images(seed=1)
    bad[1, 2, 3, 4] = value
    with pytest.raises(CalibrationError, match=r"'x' cannot be calibrated(.|\n)*batch 2"):
        qmodel(bad)
    qmodel(images(seed=2))  # that batch can be left out
    qmodel.calc_qparams(asym=True, w_quant=True, a_quant=True, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    assert qmodel(images()).isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_numbers_in_a_weight_are_named_with_the_layer(value: float) -> None:
    net = residual()
    with torch.no_grad():
        net.fc.weight[3, 2] = value
    qmodel = QuantModel(net, config(A__QUANTIZER__BIT=0), images())
    qmodel.prepare_calibration()
    with pytest.raises(
        CalibrationError, match=r"'fc.weight' (cannot be quantized: row 3|of the model holds NaN)"
    ):
        qmodel.calc_qparams()
    qmodel(images())


def test_numbers_that_overflow_inside_are_named_where_it_happens() -> None:
    net = residual()
    with torch.no_grad():
        net.conv2.weight.fill_(1e38)
    with pytest.raises(CalibrationError, match=r"'relu_1' cannot be calibrated(.|\n)*batch 1"):
        QuantModel(net, config(), images()).calibrate([images()], progress=False)


def test_all_zero_channels_and_all_zero_data_stay_exact() -> None:
    net = residual()
    with torch.no_grad():
        net.conv1.weight[2] = 0
        net.fc.weight[0] = 0
    qmodel = quantized(net, config(), torch.zeros(2, 3, 8, 8))
    assert all(bool((q.scale > 0).all()) for q in qmodel.quantizers.values())
    got = qmodel(torch.zeros(2, 3, 8, 8))
    assert got.isfinite().all() and torch.equal(got[:, 0], net.fc.bias[:1].expand(2))


def test_a_tensor_that_no_data_reaches_is_named() -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
            return torch.cat([self.left(torch.exp(x[chosen])), self.right(torch.exp(x[~chosen]))])

    x = torch.randn(4, 4)
    some, every = torch.tensor([True, False, True, False]), torch.ones(4, dtype=torch.bool)
    qmodel = QuantModel(Routed().eval(), config("onnxruntime"), (x, some))
    with pytest.raises(SparsebitError, match=r"no data reached 'exp_1'(.|\n)*QUANTIZER.DISABLE"):
        qmodel.calibrate([(x, every)], progress=False)
    qmodel.calibrate([(x, every), (x, some)], progress=False)
    rule = config("onnxruntime", A__SPECIFIC={"right": ["QUANTIZER.DISABLE", True]})
    QuantModel(Routed().eval(), rule, (x, some)).calibrate([(x, every)], progress=False)


def test_batches_of_one_and_a_ragged_last_batch_give_what_one_batch_gives() -> None:
    x = images(7)
    whole, single, ragged = (
        QuantModel(residual(), config(A__OBSERVER__TYPE="minmax"), images()) for _ in range(3)
    )
    whole.calibrate([x], progress=False)
    single.calibrate(x.split(1), progress=False)
    ragged.calibrate(DataLoader(TensorDataset(x, torch.zeros(7)), batch_size=3), progress=False)
    for name, quantizer in whole.quantizers.items():
        for other in (single, ragged):  # convolutions round differently in batches of another size
            torch.testing.assert_close(other.quantizers[name].scale, quantizer.scale, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_models_in_other_precisions(dtype: torch.dtype) -> None:
    net, x = residual().to(dtype), images().to(dtype)
    qmodel = quantized(net, None, x)
    assert qmodel(x).dtype == dtype
    error = (qmodel(x).double() - net(x).double()).norm() / net(x).double().norm()
    assert error < 0.05
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    assert all(q.scale.dtype == wide for q in qmodel.quantizers.values())
    again = quantized(residual(), None, images()).to(dtype)  # made in float32, then cast
    assert all(q.scale.dtype == torch.float32 for q in again.quantizers.values())
    assert again(x).dtype == dtype


def test_calibration_happens_in_evaluation_mode() -> None:
    evaluated, trained = residual(), residual().train()
    one, other = quantized(evaluated), quantized(trained)
    assert grids(one) == grids(other) and not other.training
    other.prepare_calibration()
    other.train()
    with pytest.raises(SparsebitError, match=r"evaluation mode(.|\n)*eval\(\)"):
        other(images())
    other.eval()
    other(images())
    other.calc_qparams()
    assert grids(one) == grids(other)


def test_a_second_round_forgets_the_first() -> None:
    qmodel = quantized(None, None, images() * 100)
    qmodel.calibrate([images()], progress=False)
    assert all(q.is_enable for q in qmodel.quantizers.values()), "it stays quantized"
    assert grids(qmodel) == grids(quantized())


def test_a_failed_round_keeps_the_one_before() -> None:
    qmodel = quantized(None, config(SCHEDULE__RECOVERY=["bias_correction"]))
    before, biases = qmodel(images()), dict(qmodel.record.shifts)
    bad = images()
    bad[0, 0, 0, 0] = torch.nan
    for loader in ([images(seed=1), bad], [], [torch.zeros(1, 4, 8, 8)], None):
        with pytest.raises(SparsebitError):
            qmodel.calibrate(loader, progress=False)
        assert torch.equal(qmodel(images()), before) and qmodel.record.shifts.keys() == biases.keys()


def test_after_calibration_the_model_is_what_it_says(tmp_path: Path) -> None:
    qmodel, exact = QuantModel(residual(), config(), images()), residual()(images())
    with pytest.raises(SparsebitError, match=r"not calibrated(.|\n)*qmodel.calibrate\(loader\)"):
        qmodel.export_onnx(images(), tmp_path / "a.onnx")
    assert not (tmp_path / "a.onnx").exists()
    qmodel.calibrate(images(), progress=False)  # a lone tensor is one batch
    rounded = qmodel(images())
    assert not torch.equal(rounded, exact)
    qmodel.set_quant(w_quant=False, a_quant=False)
    torch.testing.assert_close(qmodel(images()), exact, rtol=1e-4, atol=1e-5)
    with qmodel.quantized():
        assert torch.equal(qmodel(images()), rounded)
    torch.testing.assert_close(qmodel(images()), exact, rtol=1e-4, atol=1e-5)
    done = qmodel.export_onnx(images(), tmp_path / "a.onnx")
    assert done.report is not None and done.report.tensors, (
        "the file is quantized although the model is switched off"
    )


def test_wrong_objects_are_refused(tmp_path: Path) -> None:
    qmodel = quantized()
    with pytest.raises(SparsebitError, match="quantized already"):
        QuantModel(qmodel, config(), images())
    with pytest.raises(SparsebitError, match="quantized already"):
        QuantModel(nn.Sequential(qmodel.model), config(), images())
    with pytest.raises(SparsebitError, match=r"takes a torch.nn.Module(.|\n)*a function"):
        QuantModel(lambda x: x, config(), images())  # type: ignore[arg-type]
    with pytest.raises(SparsebitError, match=r"cannot be pickled(.|\n)*qmodel.save\(folder\)"):
        torch.save(qmodel, tmp_path / "model.pt")
    twin = copy.deepcopy(qmodel)
    assert torch.equal(twin(images()), qmodel(images())) and twin.model is not qmodel.model
    torch.save(qmodel.state_dict(), tmp_path / "state.pt")


def test_a_batch_that_does_not_fit_is_named() -> None:
    qmodel = QuantModel(residual(), config(), images())
    with pytest.raises(SparsebitError, match=r"batch 2 (.|\n)*2, 5, 8, 8"):
        qmodel.calibrate([images(), torch.zeros(2, 5, 8, 8)], progress=False)


def test_loaders_of_unknown_length_are_asked_for_no_batch_too_many() -> None:
    class Stream(IterableDataset[Tensor]):
        def __iter__(self) -> Iterator[Tensor]:
            yield from images(6)

    qmodel, drawn = QuantModel(residual(), config(), images()), []

    def batches() -> Iterator[Tensor]:
        for seed in range(5):
            drawn.append(seed)
            yield images(seed=seed)

    qmodel.calibrate(batches(), batches=2, progress=False)
    assert drawn == [0, 1]
    qmodel.calibrate(DataLoader(Stream(), batch_size=2))
    assert qmodel.quantizers["x"].calibrated


def test_w_quant_without_asym_is_refused_before_any_work() -> None:
    qmodel, drawn = QuantModel(residual(), config(), images()), []

    def batches() -> Iterator[Tensor]:
        drawn.append(1)
        yield images()

    with pytest.raises(SparsebitError, match="asym=True"):
        qmodel.calibrate(batches(), w_quant=True)
    assert not drawn


@pytest.mark.parametrize("name", ["conv2.weight", "conv2.bias", "fc.weight"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_blamed_by_name(name: str, value: float) -> None:
    net = residual()
    with torch.no_grad():
        net.get_parameter(name).view(-1)[1] = value
    qmodel = QuantModel(net, config(), images())
    with pytest.raises(CalibrationError, match=f"'{name}'(.|\n)*holds NaN|'{name}' cannot be quantized"):
        qmodel.calibrate([images()], progress=False)


def test_data_is_still_blamed_where_it_is_the_data() -> None:
    """Also where a buffer holds minus infinity, as masks do."""
    net = residual()
    net.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
    with pytest.raises(CalibrationError, match="'x' cannot be calibrated"):
        QuantModel(net, config(), images()).calibrate([images() / 0], progress=False)


class RunningMean(nn.Module):
    """Changes its buffer in every call, also in evaluation mode."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.mul_(0.9).add_(0.1 * x.mean(0))
        y: Tensor = self.linear(x - self.mean)
        return y


def test_what_calls_change_stays_as_it_was_through_calibration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = RunningMean().eval(), torch.randn(8, 4) + 3
    qmodel = sparsebit.quantize(model, [x, x, x], progress=False)
    assert torch.equal(model.mean, torch.zeros(4)), "the user's model is not changed"
    assert torch.equal(qmodel.model.get_buffer("mean"), torch.zeros(4)), "calibration leaves no trace"
    qmodel.export_onnx(x, tmp_path / "net.onnx")
    assert "calls of the model change mean; calls of the file do not" in caplog.text
    assert torch.equal(qmodel.model.get_buffer("mean"), torch.zeros(4))
    qmodel(x)
    assert qmodel.model.get_buffer("mean").abs().sum() > 0 and torch.equal(model.mean, torch.zeros(4))
