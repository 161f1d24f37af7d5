"""The largest number that each quantized weight makes on the example."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.export.translate.example_run import run_example
from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.marker import Markers
from tests.export.nets import quantized


class Both(nn.Module):
    """One weight in a module, and one that a function uses."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.free = nn.Linear(4, 4), nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(torch.relu(self.held(x)), self.free)


def test_it_gives_the_outputs_and_what_each_weight_reaches() -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    qmodel, markers = quantized(Both(), x), Markers()
    with torch.no_grad():
        (result,) = run_example(FlatGraph(qmodel.model), [x], markers)
        held = qmodel.model.get_submodule("held")(qmodel.quantizers["x"](x))
    assert torch.equal(result, qmodel(x))
    assert markers.largest == {"held.weight": float(held.abs().max()), "free": float(result.abs().max())}
