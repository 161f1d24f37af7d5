"""Curvature by random probes against the true one."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis.bits.curvature import Curvature, Probe
from sparsebit.analysis.profiling.calls import only
from sparsebit.quantization import QuantModel
from tests.analysis.bits.nets import CONFIG


class Bent(nn.Module):
    """Small enough for every second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


def exact(call: Callable[[Tensor], Tensor], net: nn.Module, name: str) -> Tensor:
    """All of JᵀJ of a function of one weight, in double precision, or of its Hessian where it gives one number."""
    net = copy.deepcopy(net).double()
    weight = net.get_parameter(name).detach()

    def run(value: Tensor) -> Tensor:
        return call(torch.func.functional_call(net, {name: value.view_as(weight)}, (X.double(),)))

    if run(weight.flatten()).dim() == 0:
        return torch.autograd.functional.hessian(run, weight.flatten())
    jacobian = torch.autograd.functional.jacobian(run, weight.flatten()).flatten(0, -2)
    return jacobian.T @ jacobian


X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1, 0])


@pytest.mark.parametrize("name", ["a.weight", "b.weight"])
def test_the_curvature_is_the_true_one(name: str) -> None:
    torch.manual_seed(0)
    net = Bent().eval()
    qmodel = QuantModel(net, CONFIG, example_inputs=(X,))
    qmodel.calibrate([X], progress=False)
    with only(qmodel, ()):
        loss = nn.functional.cross_entropy
        by_outputs = Curvature(samples=500), Curvature(kind="hessian", samples=500)
        fisher, trace = (Probe(qmodel, [name], one).run((X,), {}, ())[1][name] for one in by_outputs)
        by_loss = Curvature(kind="hessian", loss=loss, samples=500)
        bent = Probe(qmodel, [name], by_loss).run((X,), {}, (Y,))[1][name]
    diagonal = exact(lambda y: y, net, name).diagonal()
    assert torch.allclose(fisher.flatten().double(), diagonal, rtol=0.3, atol=0.1 * float(diagonal.max()))
    assert float(trace) == pytest.approx(float(diagonal.mean()), rel=0.1)
    hessian = exact(lambda y: loss(y, Y), net, name)
    assert float(bent) == pytest.approx(float(hessian.diagonal().mean()), rel=0.2)
