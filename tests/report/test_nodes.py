"""The graph that is drawn: operators, with quantizers and parameters as words on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.analysis import profile
from sparsebit.quantization import QuantModel
from sparsebit.report.nodes import graph_nodes
from tests.report.samples import batches, quantized


def test_quantizers_are_no_boxes_and_lines_skip_them() -> None:
    qmodel = quantized()
    nodes = graph_nodes(qmodel, profile(qmodel, batches(), progress=False))
    assert [node.op for node in nodes][:4] == ["placeholder", "conv2d", "relu", "conv2d"]
    by_name = {node.name: node for node in nodes}
    assert by_name["stem"].bits == "W8 A8" and by_name["mix"].bits == "W4 A8"
    assert [nodes[place].name for place in by_name["add"].inputs] == ["relu", "mix"]
    assert nodes[0].kind == "input" and nodes[-1].kind == "output"
    assert all(place < index for index, node in enumerate(nodes) for place in node.inputs)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        again: Tensor = self.layer(torch.relu(self.layer(x)).view(x.size(0), -1))
        return again


def test_a_module_that_is_called_twice_has_two_boxes() -> None:
    x = torch.randn(8, 4)
    qmodel = QuantModel(Twice().eval(), "w4a8", (x,))
    qmodel.calibrate([x], progress=False)
    nodes = graph_nodes(qmodel, profile(qmodel, [x], progress=False))
    places = [index for index, node in enumerate(nodes) if node.name == "layer"]
    assert len(places) == 2 and nodes[-1].inputs == (places[1],)
    assert "size" not in {node.op for node in nodes}


class Noisy(nn.Module):
    """What language models do beside computing: ask for devices, assert, take tuples apart."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        torch._assert(x.size(1) == 4, "four features")
        left, right = torch.split(self.layer(x), 4, dim=1)
        return left + right[:, :4] + torch.zeros(4, device=x.device)


def test_what_computes_no_tensor_is_no_box() -> None:
    x = torch.randn(8, 4)
    qmodel = QuantModel(Noisy().eval(), "w4a8", (x,))
    qmodel.calibrate([x], progress=False)
    nodes = graph_nodes(qmodel, profile(qmodel, [x], progress=False))
    names = {node.name for node in nodes}
    assert not any(word in name for name in names for word in ("assert", "device", "size"))
    assert [node.op for node in nodes if node.op == "getitem"] in ([], ["getitem"])  # of right[:, :4] alone
    split = next(index for index, node in enumerate(nodes) if "split" in node.op)
    assert any(split in node.inputs for node in nodes)
