"""Quantization-aware training that is compiled, recorded as CUDA graphs, or on a GPU: the same steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounter

from sparsebit.quantization import QuantModel
from tests.quantization.nets import config, images
from tests.quantization.training.test_training import LABELS, sgd, training

# torch's compiler makes an object of the autograd function, which torch itself warns of.
INSTANTIATED = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def losses_of(qmodel: QuantModel, model: Callable[..., Any]) -> list[float]:
    optimizer, found = sgd(qmodel), []
    for _ in range(2):
        loss = qmodel.distill(F.cross_entropy(model(images()), LABELS))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@INSTANTIATED
@pytest.mark.parametrize("kind", ["uniform", "lsq", "lsq+", "pact", "dorefa"])
def test_compiled_training_is_the_same_training(kind: str) -> None:
    """As one graph, without a break; with distillation for one of them."""
    torch.compiler.reset()
    options: dict[str, Any] = {"distill": 0.5} if kind == "lsq" else {}
    eager, qmodel = training(kind, small(), **options), training(kind, small(), **options)
    compiled = torch.compile(qmodel, backend="aot_eager", fullgraph=True)
    assert losses_of(qmodel, compiled) == pytest.approx(losses_of(eager, eager), rel=1e-4)


@pytest.mark.parametrize(("kind", "scheme"), [("lsq", "per-tensor-symmetric"), ("lsq+", "per-tensor-affine")])
def test_batches_of_other_sizes_are_compiled_once(kind: str, scheme: str) -> None:
    """The gradient factor of a learned scale depends on the size of the batch."""
    torch.compiler.reset()
    quantizer, x = {"TYPE": kind, "BIT": 4}, torch.randn(9, 4)
    weight = {"QSCHEME": "per-channel-symmetric", "QUANTIZER": quantizer}
    settings = {"BACKEND": "virtual", "W": weight, "A": {"QSCHEME": scheme, "QUANTIZER": quantizer}}
    qmodel = QuantModel(nn.Sequential(nn.Linear(4, 3)), settings, x[:4])
    qmodel.calibrate([x], progress=False)
    qmodel.init_QAT()
    counter = CompileCounter()
    model = torch.compile(qmodel, backend=counter, fullgraph=True)
    for size in (4, 6, 8, 5, 9):
        torch.testing.assert_close(model(x[:size]), qmodel(x[:size]))
    assert counter.frame_count == 2  # with sizes that are known, and with one that is free


@INSTANTIATED
# Torch's own, at a graph break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_compiled_with_updating_observers() -> None:
    torch.compiler.reset()
    settings, x = config(), torch.randn(6, 4)
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        qmodel = QuantModel(nn.Sequential(nn.Linear(4, 3)), settings, x)
        qmodel.calibrate([x], progress=False)
        qmodel.init_QAT(observers="update")
        qmodel.train()
        model = torch.compile(qmodel, backend="aot_eager") if compiled else qmodel
        found.append([model(x * factor).sum().item() for factor in (1, 2, 3)])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["uniform", "lsq", "lsq+", "pact", "dorefa"])
def test_on_a_gpu_it_is_the_same_step(kind: str) -> None:
    found = []
    for device in ("cpu", "cuda"):
        qmodel = training(kind, distill=0.5)
        qmodel.model.drop.eval()
        qmodel.to(device)
        outputs = qmodel(images().to(device))
        loss = qmodel.distill(F.cross_entropy(outputs, LABELS.to(device)))
        loss.backward()
        found.append({n: p.grad.cpu() for n, p in qmodel.named_parameters() if p.grad is not None})
    for name, grad in found[0].items():
        torch.testing.assert_close(found[1][name], grad, rtol=1e-2, atol=1e-3)


# torch says so of recording, for models without quantizers too.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["uniform", "lsq", "lsq+", "pact", "dorefa"])
def test_forward_and_backward_can_be_cuda_graphs(kind: str) -> None:
    """``torch.cuda.make_graphed_callables`` records them once; steps are those of eager mode."""
    losses = []
    for recorded in (False, True):
        torch.manual_seed(0)
        qmodel = training(kind)
        qmodel.model.drop.eval()
        qmodel.cuda()
        x, labels = images().cuda(), LABELS.cuda()
        call = torch.cuda.make_graphed_callables(qmodel, (x,)) if recorded else qmodel
        optimizer = torch.optim.SGD(qmodel.parameters(), lr=0.05)
        losses.append([])
        for _ in range(4):
            optimizer.zero_grad()
            loss = F.cross_entropy(call(x), labels)
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    assert losses[0][0] != losses[0][-1]
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-4, atol=1e-5)
