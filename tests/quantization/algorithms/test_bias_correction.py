"""Bias correction: means come back."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from sparsebit.errors import ConfigError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms import BiasCorrection
from sparsebit.quantization.algorithms.bias_correction import clipped_normal_mean, shift_of
from tests.quantization.algorithms.jobs import is_same, open_job, snapshot
from tests.quantization.nets import config, images, residual

THREE_BITS: dict[str, Any] = {"W__QUANTIZER": {"BIT": 3}}


@given(st.floats(-3, 3), st.floats(0.1, 3), st.sampled_from([math.inf, 6.0, 1.0]))
def test_the_mean_of_a_clipped_normal(mean: float, std: float, high: float) -> None:
    x = mean + std * torch.special.ndtri(torch.linspace(1e-6, 1 - 1e-6, 200_001, dtype=torch.float64))
    args = (torch.tensor([mean], dtype=torch.float64), torch.tensor([std], dtype=torch.float64))
    expected = x.clamp(0, high).mean()
    torch.testing.assert_close(clipped_normal_mean(*args, 0.0, high)[0], expected, rtol=1e-3, atol=1e-4)
    limits = torch.tensor([high], dtype=torch.float64)
    torch.testing.assert_close(clipped_normal_mean(*args, 0.0, limits)[0], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_weight_error_shifts_the_mean(groups: int) -> None:
    error, mean = torch.randn(8, 8 // groups, 3, 3), torch.randn(8)
    constant = mean.view(1, 8, 1, 1).expand(1, 8, 3, 3)
    expected = F.conv2d(constant, error, groups=groups).flatten()
    torch.testing.assert_close(shift_of(error, mean, groups), expected, rtol=1e-4, atol=1e-5)
    if groups == 1:
        flat = torch.randn(5, 8)
        torch.testing.assert_close(shift_of(flat, mean), flat @ mean)


class Functional(nn.Module):
    """Layers without a bias: a module, and a function with its own parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.weight = nn.Parameter(torch.randn(5, 4))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.relu(self.conv(x)).mean((2, 3)), self.weight)


def means(qmodel: QuantModel, x: Tensor, on: bool) -> dict[str, Tensor]:
    """Of the result of each layer, per channel."""
    found: dict[str, Tensor] = {}
    qmodel.set_quant(w_quant=on, a_quant=on)
    from sparsebit.quantization.algorithms.layers import find_quantized_layers, result_axis, watch

    layers = {layer.node.name: layer for layer in find_quantized_layers(qmodel.model)}

    def see(name: str, y: Tensor) -> None:
        axis = result_axis(layers[name], y.dim())
        found[name] = y.double().mean([dim for dim in range(y.dim()) if dim != axis])

    watch(qmodel.model, [((x,), {})], {n: (lambda y, n=n: see(n, y)) for n in layers})  # type: ignore[misc]
    return found


@pytest.mark.parametrize("kind", ["residual", "functional"])
def test_empirical_gives_every_channel_its_mean_back(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make = residual if kind == "residual" else lambda seed=0: Functional().eval()
    net, x = make(), images(8)
    before = snapshot(net)
    plain = QuantModel(net, config(**THREE_BITS), x)
    plain.calibrate([x], progress=False)
    wanted, shifted = means(plain, x, False), means(plain, x, True)
    settings = config(**THREE_BITS)
    settings["SCHEDULE"]["RECOVERY"] = ["bias_correction"]
    qmodel = QuantModel(net, settings, x)
    qmodel.calibrate([x], progress=False)
    corrected = means(qmodel, x, True)
    for name, mean in wanted.items():
        assert (shifted[name] - mean).abs().max() > 1e-3
        torch.testing.assert_close(corrected[name], mean, rtol=0, atol=1e-5)
    assert is_same(net, before), "the user's model"
    qmodel.save(tmp_path / "it")
    assert torch.equal(QuantModel.load(tmp_path / "it", make(1))(x), qmodel(x))


def test_calibrating_again_starts_from_the_float_model() -> None:
    settings = config(**THREE_BITS)
    settings["SCHEDULE"]["RECOVERY"] = ["bias_correction"]
    net, x = residual(), images(8)
    qmodel = QuantModel(net, settings, x)
    found = []
    for _ in range(2):
        qmodel.calibrate([x], progress=False)
        found.append(qmodel.model.fc.bias.detach().clone())
        assert not torch.equal(found[-1], net.fc.bias)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)


class Folded(nn.Module):
    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.conv1, self.bn, self.act = nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), activation
        self.conv2 = nn.Conv2d(16, 8, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2(self.act(self.bn(self.conv1(x))))
        return y


@pytest.mark.parametrize("steps", [[], ["equalization"]])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6()])
def test_analytic_needs_batch_norm_and_no_data(activation: nn.Module, steps: list[str]) -> None:
    """What it adds is close to what the data would have said, also where equalization rescaled everything."""
    torch.manual_seed(0)
    net, x = Folded(activation), torch.randn(32, 3, 12, 12)
    nn.init.uniform_(net.bn.weight, 0.5, 4)
    nn.init.normal_(net.bn.bias, 1, 1)
    net.train()
    for _ in range(60):
        net(x)  # so that the batch norm tells the truth
    net.eval()
    biases = []
    for method in ("analytic", "empirical"):
        recovery = [*steps, {"bias_correction": {"method": method}}]
        settings = config(W__QUANTIZER={"BIT": 3}, A__QUANTIZER={"DISABLE": True, "BIT": 8})
        settings["SCHEDULE"]["RECOVERY"] = recovery
        qmodel = QuantModel(net, settings, x)
        qmodel.calibrate([x], progress=False)
        biases.append(qmodel.model.conv2.bias.detach())
    error = (biases[0] - biases[1]).norm() / biases[1].norm()
    assert error < 0.25, f"{error:.2f}"


class PreActivation(nn.Module):
    """Here batch norm is folded into the layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.conv = nn.Conv2d(3, 6, 1), nn.BatchNorm2d(6), nn.Conv2d(6, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv(self.bn(torch.relu(self.stem(x))))
        return y


def test_analytic_does_not_mistake_a_batch_norm_in_front() -> None:
    qmodel, job = open_job(PreActivation(), images(), calibrated=True)
    assert dict(job.batch_norms) == {}
    before = snapshot(qmodel.model)
    BiasCorrection(method="analytic").apply(job)
    assert is_same(qmodel.model, before)
    assert job.notes == ["corrected 0 of 2 biases from batch norm"]


def test_unknown_method() -> None:
    with pytest.raises(ConfigError, match="empirical or analytic"):
        BiasCorrection(method="guess")  # type: ignore[arg-type]
