"""Weights that depend on no input are computed once; everything else stays as it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.passes import run_passes
from sparsebit.graph.passes.fold_computed_weights import fold_computed_weights
from sparsebit.quantization import QuantModel

X = torch.randn(2, 3, 6, 6)


class Standardized(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        mean = self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(x, (self.weight - mean) / self.weight.std((1, 2, 3), keepdim=True), self.bias)


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.a, self.b = (
            nn.Linear(6, 6),
            nn.Parameter(torch.randn(2, 6)),
            nn.Parameter(torch.ones(6, 2)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.base.weight + 0.5 * self.b @ self.a, self.base.bias)


class Transposed(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


class Factors(LowRank):
    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.a.T @ self.b.T)


NETS = {
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3)),
    "orthogonal": lambda: nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)),
    "standardized": lambda: Standardized(3, 4, 3),
    "low rank": LowRank,
    "transposed": lambda: Transposed(6, 6),
    "factors": Factors,
}


@pytest.mark.parametrize("name", NETS)
def test_a_computed_weight_becomes_a_parameter_with_its_numbers(name: str) -> None:
    net = nn.Sequential(NETS[name](), nn.ReLU()).eval()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    gm = capture(net, X)
    want = net(X)
    assert run_passes(gm, (fold_computed_weights,)) == {"fold_computed_weights": 1}
    torch.testing.assert_close(gm(X), want)  # another order in memory may change the last bit
    assert torch.equal(net(X), want)
    assert all(torch.equal(net.state_dict()[key], value) for key, value in before.items()), (
        "the user's model stays"
    )
    assert fold_computed_weights(gm) == 0


def test_what_the_weight_was_computed_from_leaves_the_graph_alone() -> None:
    net = LowRank()
    gm = capture(net, torch.randn(2, 6))
    fold_computed_weights(gm)
    assert sorted(gm.state_dict()) == ["base.bias", "weight"]
    assert sorted(net.state_dict()) == ["a", "b", "base.bias", "base.weight"]


class Twice(nn.Module):
    """One weight for two layers; ``tied`` reads the parameter once more."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.w, self.tied = nn.Parameter(torch.randn(3, 3)), tied

    def forward(self, x: Tensor) -> Tensor:
        weight = self.w / self.w.norm()
        y = F.linear(F.linear(x, weight).relu(), weight)
        return y + self.w.sum() if self.tied else y


def test_one_weight_for_two_layers_stays_one() -> None:
    gm, x = capture(Twice(), torch.randn(2, 3)), torch.randn(4, 3)
    want = gm(x)
    assert fold_computed_weights(gm) == 1 and torch.equal(gm(x), want)
    assert list(gm.state_dict()) == ["weight"]


def test_a_layer_that_is_called_twice_keeps_one_weight() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    gm, x = capture(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 3)), torch.randn(4, 3)
    want = gm(x)
    assert fold_computed_weights(gm) == 1 and torch.equal(gm(x), want)
    assert (
        sorted(gm.state_dict()) == ["0.bias", "0.weight", "2.bias", "2.weight"]
        or len(set(gm.parameters())) == 2
    )


def test_a_weight_tied_to_another_operator_stays_computed() -> None:
    assert fold_computed_weights(capture(Twice(tied=True), torch.randn(2, 3))) == 0


class DependsOnInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.w * x.mean())


class DependsOnCalls(nn.Module):
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("steps", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return F.linear(x, self.w / self.steps)


class IsRandom(DependsOnInput):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, F.dropout(self.w, 0.5, training=True))


@pytest.mark.parametrize("kind", [DependsOnInput, DependsOnCalls, IsRandom])
def test_a_weight_that_differs_between_calls_stays_computed(kind: type[nn.Module]) -> None:
    gm = capture(kind().eval(), torch.randn(2, 3))
    assert fold_computed_weights(gm) == 0


def test_a_model_with_weight_norm_is_quantized_like_one_without() -> None:
    torch.manual_seed(0)
    x, plain = torch.randn(4, 3, 8), nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 1)).eval()
    normed = nn.Sequential(nn.Conv1d(3, 8, 3), nn.ReLU(), nn.Conv1d(8, 4, 1)).eval()
    normed.load_state_dict(plain.state_dict())
    for layer in (normed[0], normed[2]):
        nn.utils.parametrizations.weight_norm(layer)
    models = [QuantModel(net, "int8_onnxruntime", example_inputs=(x,)) for net in (plain, normed)]
    for qmodel in models:
        qmodel.calibrate([x], progress=False)
    names = [{q.name for q in qmodel.quantizers.values() if q.side == "W"} for qmodel in models]
    assert names == [{"0.weight", "2.weight"}] * 2
    assert torch.allclose(models[0](x), models[1](x), atol=1e-5)


def test_a_product_with_a_transposed_weight_is_quantized_and_stays_the_same_in_a_folder(
    tmp_path: Path,
) -> None:
    net = nn.Sequential(Transposed(16, 32), nn.ReLU(), Transposed(32, 8)).eval()
    x = torch.randn(4, 16)
    qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=(x,))
    assert len(qmodel.plan.weights()) == 2
    qmodel.calibrate([x], progress=False)
    want = qmodel(x)
    qmodel.save(tmp_path / "small")
    assert torch.equal(QuantModel.load(tmp_path / "small", net)(x), want)
    qmodel.freeze()
    assert torch.equal(qmodel(x), want)


def test_a_model_with_the_older_spectral_norm_is_saved_and_loaded(tmp_path: Path) -> None:
    net = nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), nn.Linear(8, 2)).eval()
    x, hooks = torch.randn(4, 4), len(net[0]._load_state_dict_pre_hooks)
    qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.save(tmp_path / "small")
    assert torch.equal(QuantModel.load(tmp_path / "small", net)(x), qmodel(x))
    assert len(net[0]._load_state_dict_pre_hooks) == hooks == 1


def test_a_weight_of_frozen_parameters_or_buffers_is_not_trained() -> None:
    frozen, trained = Transposed(6, 6).requires_grad_(False), Transposed(6, 6)
    gm = capture(nn.Sequential(frozen, trained).eval(), X)
    assert fold_computed_weights(gm) == 2
    found = {name: parameter.requires_grad for name, parameter in gm.named_parameters()}
    assert found == {"0.bias": False, "0.computed_weight": False, "1.bias": True, "1.computed_weight": True}
