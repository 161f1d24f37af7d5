"""SmoothQuant: outliers move from activations into weights, and the function stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import ConfigError
from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms import SmoothQuant
from sparsebit.quantization.algorithms.smoothquant import find_norms, smoothing_scales
from tests.quantization.algorithms.jobs import Encoder, RMSNorm, is_same, open_job, snapshot
from tests.quantization.nets import config

X = torch.randn(3, 6, 8, generator=torch.Generator().manual_seed(0))
NORMS = {"layer_norm": nn.LayerNorm, "rms_norm": nn.RMSNorm, "written out": RMSNorm}


def with_outliers(norm: type[nn.Module]) -> Encoder:
    torch.manual_seed(0)
    net = Encoder(norm)
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if "norm" in name or "last" in name:
                parameter[::4] *= 60
    return net.eval()


def test_the_equation() -> None:
    x, w = torch.tensor([8.0, 2.0, 0.0, 1.0]), torch.tensor([2.0, 2.0, 1.0, 0.0])
    torch.testing.assert_close(smoothing_scales(x, w, 0.5), torch.tensor([2.0, 1.0, 1.0, 1.0]))
    torch.testing.assert_close(smoothing_scales(x, w, 1.0)[:2], x[:2])
    torch.testing.assert_close(smoothing_scales(x, w, 0.0)[:2], 1 / w[:2])


@pytest.mark.parametrize("alpha", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("norm", sorted(NORMS))
def test_the_float_function_does_not_change(norm: str, alpha: float) -> None:
    net = with_outliers(NORMS[norm]).double()
    before, x = snapshot(net), X.double()
    qmodel, job = open_job(net, x)
    exact = qmodel.model(x)
    readers = [sorted(layer.node.name for layer in layers) for layers in find_norms(job.gm).values()]
    expected = [["layers_0_k", "layers_0_q", "layers_0_v"], ["layers_0_up"]]
    assert readers == [*expected, *([n.replace("_0_", "_1_") for n in ns] for ns in expected), ["head"]]
    SmoothQuant(alpha=alpha).apply(job)
    torch.testing.assert_close(qmodel.model(x), exact, rtol=1e-11, atol=1e-11)
    assert is_same(net, before), "the user's model"
    found = qmodel.model.get_submodule("layers.0.q")
    assert (found.weight != net.layers[0].q.weight).any()  # type: ignore[union-attr]
    shown = qmodel.model.layers_0_q.input_quantizer
    assert shown is None or shown in qmodel.quantizers.values()


@pytest.mark.parametrize("norm", sorted(NORMS))
def test_activations_with_outliers_lose_less(norm: str) -> None:
    net, errors = with_outliers(NORMS[norm]), []
    for steps in ([], ["smoothquant"]):
        qmodel = QuantModel(net, config(SCHEDULE={"RECOVERY": steps}), X)
        qmodel.calibrate([X], progress=False)
        qmodel.set_quant(w_quant=True, a_quant=True)
        errors.append((qmodel(X) - net(X)).square().mean())
    # Written out, its own products are quantized as well, which smoothing does not help.
    assert errors[1] < (0.9 if norm == "written out" else 0.5) * errors[0]


def test_an_empty_batch_changes_nothing() -> None:
    found = []
    for data in ([X], [X, X[:0]]):
        qmodel = QuantModel(with_outliers(nn.LayerNorm), config(SCHEDULE={"RECOVERY": ["smoothquant"]}), X)
        qmodel.calibrate(data, progress=False)
        found.append(qmodel(X))
    assert torch.equal(*found)


class PostNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.a = nn.LayerNorm(8), nn.Linear(8, 8)
        self.scalar, self.b = nn.Parameter(torch.ones(1)), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        x = x + self.a(x)  # the residual stream reads the norm as well
        y: Tensor = self.b(self.scalar * x)  # one number for all channels
        return y


def test_what_something_else_reads_is_left_alone() -> None:
    _, job = open_job(PostNorm(), X)
    assert find_norms(job.gm) == {}


def test_alpha_is_a_share() -> None:
    with pytest.raises(ConfigError, match="from 0 to 1"):
        SmoothQuant(alpha=1.5)
