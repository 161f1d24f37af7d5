"""Batch norm tuning: plain averages behind quantized layers, and a fold that moves no code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from tests.quantization.nets import CONFIGS, config, images, residual

BATCHES = tuple(images(6, seed) for seed in range(3))


def tuning(backend: str = "virtual", **changes: Any) -> dict[str, Any]:
    return config(backend, SCHEDULE={"BN_TUNING": True}, **changes)


def calibrated(net: nn.Module, settings: dict[str, Any]) -> QuantModel:
    qmodel = QuantModel(net, settings, images())
    qmodel.calibrate(BATCHES, progress=False)
    return qmodel


def codes(qmodel: QuantModel, name: str) -> Tensor:
    quantizer = qmodel.quantizers[f"{name}.weight"]
    weight = qmodel.model.get_submodule(name).weight.detach()
    return quantizer.grid().codes(weight).int()


@pytest.mark.parametrize("target", sorted(CONFIGS))
def test_folding_keeps_codes_and_outputs(target: str, tmp_path: Path) -> None:
    net = residual()
    with torch.no_grad():
        net.bn1.weight[::2] *= -1  # negative gamma turns a channel over
    own = {name: value.clone() for name, value in net.state_dict().items()}
    qmodel = calibrated(net, tuning(target))
    before = {name: codes(qmodel, name) for name in ("conv1", "conv2")}
    with qmodel.batchnorm_tuning():
        for batch in BATCHES:
            qmodel(batch)
        tuned = [norm.running_mean.clone() for norm in (qmodel.model.bn1, qmodel.model.bn2)]
        for norm in (qmodel.model.bn1, qmodel.model.bn2):
            norm.eval()  # as it will be folded
        expected = qmodel(images())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in qmodel.model.modules())
    assert qmodel.tuned and not qmodel.training
    signs = torch.where(net.bn1.weight < 0, -1, 1).view(-1, 1, 1, 1)
    assert torch.equal(codes(qmodel, "conv1"), before["conv1"] * signs)
    assert torch.equal(codes(qmodel, "conv2"), before["conv2"])
    assert all(bool((q.scale > 0).all()) for q in qmodel.quantizers.values())
    qmodel.set_quant(w_quant=True, a_quant=True)
    step = max(q.scale.max().item() for q in qmodel.quantizers.values() if q.side == "A")
    assert (qmodel(images()) - expected).abs().max() < step
    assert qmodel.model.conv2.input_quantizer in qmodel.quantizers.values()
    assert not torch.equal(tuned[0], own["bn1.running_mean"])
    assert all(torch.equal(value, own[name]) for name, value in net.state_dict().items()), "the user's model"
    qmodel.save(tmp_path / "tuned")
    loaded = QuantModel.load(tmp_path / "tuned", residual(seed=3))
    assert loaded.tuned and torch.equal(loaded(images()), qmodel(images()))


def test_statistics_are_plain_averages_over_the_batches() -> None:
    qmodel = calibrated(residual(), tuning())
    seen: list[Tensor] = []
    hook = qmodel.model.bn1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with qmodel.batchnorm_tuning():
        for batch in BATCHES:
            qmodel(batch)
        hook.remove()
        norm = qmodel.model.bn1
        means = torch.stack([x.mean((0, 2, 3)) for x in seen]).mean(0)
        variances = torch.stack([x.var((0, 2, 3)) for x in seen]).mean(0)
        torch.testing.assert_close(norm.running_mean, means)
        torch.testing.assert_close(norm.running_var, variances)
        assert not qmodel.model.drop.training


def test_codes_of_affine_weights_turn_over_with_the_sign() -> None:
    net = residual()
    with torch.no_grad():
        net.bn1.weight[::2] *= -1
    qmodel = calibrated(net, tuning(W__QSCHEME="per-channel-affine"))
    before = codes(qmodel, "conv1")
    with qmodel.batchnorm_tuning():
        qmodel(BATCHES[0])
    negative = (net.bn1.weight < 0).view(-1, 1, 1, 1)
    assert torch.equal(codes(qmodel, "conv1"), torch.where(negative, 255 - before, before))


def test_a_grouped_transposed_convolution_folds_too() -> None:
    class Up(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.ConvTranspose2d(4, 6, 3, groups=2)
            self.bn = nn.BatchNorm2d(6)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.bn(self.conv(x))
            return y

    x = torch.randn(4, 4, 5, 5)
    qmodel = QuantModel(Up().eval(), tuning(), x)
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    with qmodel.batchnorm_tuning():
        qmodel(x)
        qmodel.model.bn.eval()
        expected = qmodel(x)
    torch.testing.assert_close(qmodel(x), expected, rtol=1e-3, atol=1e-4)


def test_leaving_without_data_or_with_an_error_puts_everything_back() -> None:
    qmodel = calibrated(residual(), tuning())
    before = {name: value.clone() for name, value in qmodel.state_dict().items()}
    with pytest.raises(SparsebitError, match="no data ran through"), qmodel.batchnorm_tuning():
        pass
    with pytest.raises(KeyError, match="mine"), qmodel.batchnorm_tuning():
        qmodel(images())
        raise KeyError("mine")
    assert all(torch.equal(value, before[name]) for name, value in qmodel.state_dict().items())
    assert qmodel.model.bn1.momentum == 0.1 and not qmodel.model.bn1.training and not qmodel.tuned
    with qmodel.batchnorm_tuning():
        qmodel(images())


def test_it_must_be_asked_for_and_calibrated() -> None:
    with (
        pytest.raises(SparsebitError, match="BN_TUNING: true"),
        calibrated(residual(), config()).batchnorm_tuning(),
    ):
        pass
    qmodel = QuantModel(residual(), tuning(), images())
    with pytest.raises(SparsebitError, match="not calibrated"), qmodel.batchnorm_tuning():
        pass
    net = nn.Sequential(nn.Conv2d(3, 4, 1)).eval()
    with pytest.raises(SparsebitError, match="no batch norm"), calibrated(net, tuning()).batchnorm_tuning():
        pass


def test_quantizers_keep_their_switches() -> None:
    for on in (True, False):
        qmodel = calibrated(residual(), tuning())
        qmodel.set_quant(w_quant=on, a_quant=on)
        with qmodel.batchnorm_tuning():
            assert all(q.is_enable for q in qmodel.quantizers.values())
            qmodel(images())
        assert all(q.is_enable == on for q in qmodel.quantizers.values())
