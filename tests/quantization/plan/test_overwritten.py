"""Tensors that a model overwrites in place: a quantizer must not keep the numbers from before."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.quantization import QuantModel
from tests.quantization.nets import config


def scale_a_part(x: Tensor) -> Tensor:
    x[:, :3] *= 4
    return x


def write_through_views(x: Tensor) -> Tensor:
    x.view(-1, 4, 2)[:, 0].add_(3)
    return x


def read_a_view_from_before(x: Tensor) -> Tensor:
    before = x.view(-1, 2, 4)
    x[:, :3] *= 4
    return before.flatten(1)


def write_all(x: Tensor) -> Tensor:
    return x.mul_(4)


class Writes(nn.Module):
    def __init__(self, write: Callable[[Tensor], Tensor], first: bool) -> None:
        super().__init__()
        self.a, self.b, self.write, self.first = nn.Linear(8, 8), nn.Linear(8, 8), write, first

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(self.write(x))) if self.first else self.b(self.write(self.a(x)))
        return y


@pytest.mark.parametrize("first", [True, False], ids=["its input", "a result"])
@pytest.mark.parametrize(
    "write",
    [scale_a_part, write_through_views, read_a_view_from_before, write_all],
    ids=lambda one: one.__name__,
)
def test_what_is_read_after_the_write_is_what_was_written(
    write: Callable[[Tensor], Tensor], first: bool
) -> None:
    torch.manual_seed(0)
    net, x = Writes(write, first).eval(), torch.randn(64, 8)
    # The steps run the data several times, and cut the graph into parts.
    settings = config(SCHEDULE={"RECOVERY": ["bias_correction", {"brecq": {"steps": 5}}]})
    given = x.clone()
    qmodel = QuantModel(net, settings, (x.clone(),))
    qmodel.calibrate([given], progress=False)
    exact, found = net(x.clone()), qmodel(x.clone())
    assert (found - exact).norm() < 0.03 * exact.norm()
    assert torch.equal(given, x)  # each run starts from the same numbers
    reasons = {edge.reason for edge in qmodel.plan.edges if edge.consumer in ("a", "b")}
    kept = write in (scale_a_part, write_through_views)  # the others return a tensor of their own
    assert ("its input is overwritten in place before it is read" in reasons) == kept


def test_a_weight_that_the_model_overwrites_stays_in_float() -> None:
    class Doubling(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randn(4, 8))

        def forward(self, x: Tensor) -> Tensor:
            self.weight.clamp_(-0.1, 0.1)  # type: ignore[operator]
            return F.linear(x, self.weight)  # type: ignore[arg-type]

    net, x = Doubling().eval(), torch.randn(16, 8)
    qmodel = QuantModel(net, config(), (x,))
    qmodel.calibrate([x], progress=False)
    assert not qmodel.plan.weights()
    assert (qmodel(x) - net(x)).norm() < 0.03 * net(x).norm()
