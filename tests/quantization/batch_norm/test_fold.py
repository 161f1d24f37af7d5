"""Batch norm folded into quantized weights: no quantized value moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
from tests.quantization.batch_norm.test_tune import BATCHES, codes, tuning
from tests.quantization.nets import CONFIGS, config, images, residual


class Functional(nn.Module):
    """A convolution that pads by itself, so that the graph has the function and not the module."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.last = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(F.pad(x, (1, 1, 1, 1)), self.conv.weight)
        y: Tensor = self.last(F.relu(self.bn(x)).mean((2, 3)))
        return y


def in_training(net: nn.Module, kind: str = "uniform", bits: int = 4, **changes: Any) -> QuantModel:
    """Trained for a while: batch norms and weights are no longer what they were calibrated with."""
    activations = "uniform" if kind == "adaround" else kind
    settings = config(
        SCHEDULE={"RECOVERY": [{"adaround": {"steps": 5}}] if kind == "adaround" else []},
        W__QUANTIZER={"TYPE": kind, "BIT": bits},
        A__QUANTIZER={"TYPE": activations, "BIT": 8},
    )
    settings["W"].update(changes)
    torch.manual_seed(0)
    qmodel = QuantModel(net.eval(), settings, images())
    qmodel.calibrate(BATCHES, progress=False)
    qmodel.init_QAT(observers="update")
    qmodel.train()
    optimizer = torch.optim.SGD(qmodel.parameter_groups(0.02), momentum=0.9)
    for step in range(3):
        loss = F.cross_entropy(qmodel(images(4, seed=step)), torch.arange(4))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    qmodel.eval()
    return qmodel


@pytest.mark.parametrize("make", [residual, Functional], ids=["modules", "functions"])
@pytest.mark.parametrize("kind", ["uniform", "lsq", "lsq+", "dorefa", "adaround"])
def test_what_a_runtime_gets_computes_the_same_without_batch_norm(kind: str, make: Any) -> None:
    qmodel = in_training(make(), kind)
    before = {name: value.clone() for name, value in qmodel.state_dict().items()}
    expected = qmodel(images())
    folded = qmodel.folded()
    assert not any(node.name.startswith("bn") for node in folded.graph.nodes)
    torch.testing.assert_close(folded(images()), expected, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(value, before[name]) for name, value in qmodel.state_dict().items())
    assert torch.equal(qmodel(images()), expected), "it was a copy"
    assert kind in {quantizer.TYPE for quantizer in qmodel.quantizers.values()}


def test_a_batch_norm_stays_where_folding_would_change_a_result() -> None:
    """A negative gamma would turn the lowest code of 2 bits, -2, over to 2, which is not there."""
    net = residual()
    with torch.no_grad():
        net.bn1.weight[::2] *= -1
        net.bn2.weight.abs_()
    qmodel = in_training(net, "lsq", bits=2)
    qmodel.quantizers["conv1.weight"].scale.data.mul_(0.5)
    assert (codes(qmodel, "conv1")[::2] == -2).any()
    folded = qmodel.folded()
    names = [node.name for node in folded.graph.nodes]
    assert "bn1" in names and "bn2" not in names
    torch.testing.assert_close(folded(images()), qmodel(images()), rtol=1e-4, atol=1e-5)


def test_a_batch_norm_stays_behind_a_weight_with_one_scale() -> None:
    qmodel = in_training(residual(), QSCHEME="per-tensor-symmetric")
    folded = qmodel.folded()
    assert {"bn1", "bn2"} <= {node.name for node in folded.graph.nodes}
    assert torch.equal(folded(images()), qmodel(images()))


def test_halfway_weights_stay_on_their_side() -> None:
    """On a grid of 2 / 7 half of all weights are ties, and any factor but a power of two moves some of them."""
    net = residual()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        halves = torch.randint(-14, 15, net.conv1.weight.shape, generator=generator)
        net.conv1.weight.copy_(halves / 7)
        net.conv1.weight[:, 0, 0, 0] = 2.0
    qmodel = QuantModel(net, config(SCHEDULE={}, W__QUANTIZER={"BIT": 4}), images())
    qmodel.calibrate(BATCHES, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    before, folded = codes(qmodel, "conv1"), qmodel.folded()
    quantizer, weight = folded.conv1.weight_quantizer, folded.conv1.weight.detach()
    assert torch.equal(quantizer.grid().codes(weight).int(), before)


def test_weights_without_a_size_are_not_trained_folded() -> None:
    qmodel = in_training(residual(), "dorefa")
    with pytest.raises(SparsebitError, match="the batch norm after it must stay"):
        qmodel.init_QAT(batch_norm="fold")
    assert "bn1" in {node.name for node in qmodel.model.graph.nodes}


@pytest.mark.parametrize("target", sorted(CONFIGS))
def test_nothing_is_rounded_between_a_layer_and_its_batch_norm(target: str) -> None:
    qmodel = QuantModel(residual(), config(target, SCHEDULE={}), images())
    for node in qmodel.model.graph.nodes:
        if node.name in ("bn1", "bn2"):
            assert node.all_input_nodes[0].name in ("conv1", "conv2")


def test_tuning_folds_into_functions_too(tmp_path: Path) -> None:
    qmodel = QuantModel(Functional().eval(), tuning(), images())
    qmodel.calibrate(BATCHES, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    with qmodel.batchnorm_tuning():
        qmodel(BATCHES[0])
        qmodel.model.bn.eval()
        expected = qmodel(images())
    assert "bn" not in {node.name for node in qmodel.model.graph.nodes}
    torch.testing.assert_close(qmodel(images()), expected, rtol=1e-4, atol=1e-5)
    qmodel.save(tmp_path / "tuned")
    assert torch.equal(QuantModel.load(tmp_path / "tuned", Functional().eval())(images()), qmodel(images()))
