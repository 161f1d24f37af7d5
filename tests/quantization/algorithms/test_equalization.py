"""Cross-layer equalization: another set of weights for the same function."""

from __future__ import annotations

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
from sparsebit.quantization.algorithms import Equalization
from sparsebit.quantization.algorithms.equalization import equalizing_scales, find_pairs
from tests.quantization.algorithms.jobs import Plain, is_same, open_job, snapshot, unequal
from tests.quantization.nets import config

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
ACTIVATIONS = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "leaky": nn.LeakyReLU(0.1),
    "prelu": nn.PReLU(),
    "identity": nn.Identity(),
    "hardtanh": nn.Hardtanh(0.0, 2.0),
    "dropout": nn.Dropout(),
}
PER_TENSOR: dict[str, Any] = {"W__QSCHEME": "per-tensor-symmetric"}


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=1, max_size=8))
def test_both_ranges_become_their_geometric_mean(pairs: list[tuple[float, float]]) -> None:
    first, second = torch.tensor(pairs, dtype=torch.float64).unbind(1)
    scales = equalizing_scales(first, second)
    torch.testing.assert_close(first / scales, (first * second).sqrt())
    torch.testing.assert_close(second * scales, (first * second).sqrt())


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("bias", [True, False])
def test_the_float_function_does_not_change(activation: str, bias: bool) -> None:
    net = unequal(Plain(ACTIVATIONS[activation], bias)).double()
    before, x = snapshot(net), X.double()
    qmodel, job = open_job(net, x, **PER_TENSOR)
    exact = qmodel.model(x)
    assert len(find_pairs(job.gm)) == 3
    Equalization().apply(job)
    torch.testing.assert_close(qmodel.model(x), exact, rtol=1e-11, atol=1e-11)
    weights = dict(qmodel.model.named_parameters())
    first, second = (weights[f"{i}.weight"].flatten(1).abs().amax(1) for i in (0, 2))
    torch.testing.assert_close(first, second, rtol=0.05, atol=0)  # of the first pair, after all rounds
    assert is_same(net, before), "the user's model"


@pytest.mark.parametrize("activation", ["relu", "relu6", "prelu"])
def test_weights_with_one_scale_lose_less(activation: str) -> None:
    net = unequal(Plain(ACTIVATIONS[activation]))
    errors = []
    for steps in ([], ["equalization"]):
        qmodel = QuantModel(net.eval(), config(SCHEDULE={"RECOVERY": steps}, **PER_TENSOR), X)
        qmodel.calibrate([X], progress=False)
        qmodel.set_quant(w_quant=True)
        errors.append((qmodel(X) - net(X)).square().mean())
    assert errors[1] < 0.25 * errors[0]


def test_linear_layers_over_tokens_clip_along_their_channels() -> None:
    """[B, T, C] with T == C: the axis could be mistaken."""
    net = unequal(nn.Sequential(nn.Linear(4, 6), nn.ReLU6(), nn.Linear(6, 3))).double()
    x = torch.randn(2, 6, 4, dtype=torch.float64) * 20
    qmodel, job = open_job(net, x)
    exact = qmodel.model(x)
    Equalization().apply(job)
    torch.testing.assert_close(qmodel.model(x), exact, rtol=1e-11, atol=1e-11)


def test_a_channel_of_zeros_is_left_alone() -> None:
    net = Plain(nn.ReLU())
    with torch.no_grad():
        dict(net.named_parameters())["0.weight"][2] = 0
    qmodel, job = open_job(net, X)
    exact = qmodel.model(X)
    Equalization().apply(job)
    assert qmodel.model(X).isfinite().all()
    torch.testing.assert_close(qmodel.model(X), exact, rtol=1e-4, atol=1e-5)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.up, self.d = nn.ConvTranspose2d(4, 4, 2), nn.Conv2d(4, 4, 1, groups=2)
        self.twice, self.e = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.a(x))
        x = self.b(a) + a  # read twice
        x = self.c(torch.sigmoid(self.c(x)))  # does not scale along; called twice
        x = self.d(F.relu(self.up(x)))  # transposed; grouped
        y: Tensor = self.e(F.gelu(self.twice(x)))
        return y


def test_where_it_would_change_the_function_there_is_no_pair() -> None:
    _, job = open_job(Branches(), torch.randn(2, 4, 5, 5))
    assert find_pairs(job.gm) == []


def test_relu6_survives_saving_and_more_steps(tmp_path: Path) -> None:
    net = unequal(Plain(nn.ReLU6()))
    steps = ["equalization", "bias_correction", {"brecq": {"steps": 2}}]
    qmodel = QuantModel(net.eval(), config(SCHEDULE={"RECOVERY": steps}, **PER_TENSOR), X)
    qmodel.calibrate([X], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    assert (qmodel(X) - net(X)).square().mean() < 0.1 * net(X).square().mean()
    qmodel.save(tmp_path / "it")
    loaded = QuantModel.load(tmp_path / "it", Plain(nn.ReLU6()).eval())
    assert torch.equal(loaded(X), qmodel(X))
    qmodel.calibrate([X], progress=False)  # once more
    qmodel.set_quant(w_quant=True, a_quant=True)
    assert (qmodel(X) - net(X)).square().mean() < 0.1 * net(X).square().mean()


def test_rounds_must_be_some() -> None:
    with pytest.raises(ConfigError, match="rounds"):
        Equalization(rounds=0)
