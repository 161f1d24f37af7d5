"""Blocks: where a graph may be cut, for every kind of net."""

from __future__ import annotations

from itertools import chain

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms.reconstruction import Block, find_blocks
from sparsebit.quantization.algorithms.reconstruction.blocks import extract
from sparsebit.quantization.quantizers import Quantizer
from tests.quantization.algorithms.jobs import Dense, Encoder, Plain, RMSNorm
from tests.quantization.nets import config, images, quantized, residual
from tests.zoo.nets.cifar_resnet import cifar_resnet20


def calibrated(net: nn.Module, x: Tensor) -> QuantModel:
    return quantized(net.eval(), config(), x)


def names(blocks: list[Block]) -> list[list[str]]:
    return [[name.removesuffix(".weight") for name in block.weights] for block in blocks]


def check_chain(qmodel: QuantModel, x: Tensor, blocks: list[Block]) -> None:
    """Every node is in one block, and running block after block is running the model."""
    graph = qmodel.model.graph
    inside = [node for block in blocks for node in block.nodes]
    assert len(inside) == len(set(inside))
    values: dict[object, object] = {
        node: value for node, value in zip(graph.nodes, graph.process_inputs(x), strict=False)
    }
    with torch.no_grad():
        for block in blocks:
            results = extract(qmodel.model, block)(*(values[node] for node in block.inputs))
            values.update(zip(block.outputs, results, strict=True))
        (last,) = next(iter(reversed(graph.nodes))).all_input_nodes
        assert torch.equal(values[last], qmodel(x))  # type: ignore[arg-type]


def test_residual_nets_are_cut_between_residual_blocks() -> None:
    x = torch.randn(2, 3, 16, 16)
    qmodel = calibrated(cifar_resnet20(width=4), x)
    blocks = find_blocks(qmodel.model)
    found = names(blocks)
    pairs = [[f"layer{s}.{b}.conv1", f"layer{s}.{b}.conv2"] for s in (1, 2, 3) for b in range(3)]
    assert found == [["conv1"], *pairs, ["linear"]]
    check_chain(qmodel, x, blocks)


def test_plain_chains_are_cut_behind_every_activation() -> None:
    qmodel = calibrated(Plain(nn.ReLU()), images())
    blocks = find_blocks(qmodel.model)
    assert names(blocks) == [["0"], ["2", "4"], ["7"]], "the depthwise one goes with the pointwise one"
    for block in blocks[:-1]:
        last = block.nodes[-1]
        assert not isinstance(qmodel.model.get_submodule(str(last.target)), Quantizer), (
            "goes with its readers"
        )
    check_chain(qmodel, images(), blocks)


class Inverted(nn.Sequential):
    """expand, depthwise, project: wider inside than at either end, with no residual around it."""

    def __init__(self, inputs: int, hidden: int, outputs: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, hidden, 1),
            nn.ReLU6(),
            nn.Conv2d(hidden, hidden, 3, stride, padding=1, groups=hidden),
            nn.ReLU6(),
            nn.Conv2d(hidden, outputs, 1),
        )


def test_an_inverted_bottleneck_is_one_block_whether_or_not_a_residual_goes_around_it() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU6(), Inverted(4, 12, 6, stride=2), Inverted(6, 12, 6), nn.Conv2d(6, 5, 1)
    )
    qmodel = calibrated(net, images())
    blocks = find_blocks(qmodel.model)
    inside = [[f"{i}.{j}" for j in (0, 2, 4)] for i in (2, 3)]
    assert names(blocks) == [["0"], *inside, ["4"]]
    check_chain(qmodel, images(), blocks)
    assert names(find_blocks(qmodel.model, "layer")) == [
        ["0"],
        *([n] for block in inside for n in block),
        ["4"],
    ]
    assert all(len(block.weights) <= 2 for block in find_blocks(qmodel.model, largest=1))


def test_separable_convolutions_stay_pairs() -> None:
    """Every layer is depthwise or pointwise and none narrows: the chain must not become one block."""
    pairs = [
        layer
        for _ in range(3)
        for layer in (nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.ReLU(), nn.Conv2d(4, 4, 1), nn.ReLU())
    ]
    qmodel = calibrated(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU(), *pairs), images())
    assert names(find_blocks(qmodel.model)) == [["0"], *([str(i), str(i + 2)] for i in (2, 6, 10))]


@pytest.mark.parametrize("norm", [nn.LayerNorm, RMSNorm])
def test_transformers_are_cut_between_attention_and_feed_forward(norm: type[nn.Module]) -> None:
    x = torch.randn(2, 6, 8)
    qmodel = calibrated(Encoder(norm), x)
    blocks = find_blocks(qmodel.model)
    inner = [[[f"layers.{i}.{n}" for n in part] for part in ("qkvo", ("up", "down"))] for i in range(2)]
    assert [sorted(b) for b in names(blocks)] == [sorted(b) for pair in inner for b in pair] + [["head"]]
    check_chain(qmodel, x, blocks)


@pytest.mark.parametrize("largest", [1, 2, 3, 12])
def test_dense_nets_are_cut_where_it_is_narrowest(largest: int) -> None:
    qmodel = calibrated(Dense(), images())
    blocks = find_blocks(qmodel.model, largest=largest)
    assert [*chain(*names(blocks))] == [*(f"convs.{i}" for i in range(5)), "last"]
    assert all(len(block.weights) <= largest + 1 for block in blocks)
    check_chain(qmodel, images(), blocks)


@pytest.mark.parametrize("make", [residual, Dense, lambda: Plain(nn.ReLU())])
def test_layer_by_layer(make: object) -> None:
    net = make()  # type: ignore[operator]
    qmodel = calibrated(net, images())
    blocks = find_blocks(qmodel.model, "layer")
    assert all(len(block.weights) <= 1 for block in blocks)
    check_chain(qmodel, images(), blocks)


class Denoiser(nn.Module):
    """What it reads comes back at the far end, and must not keep it in one piece."""

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3, 3, 3, padding=1) for _ in range(depth)])

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for conv in self.convs:
            y = F.relu(conv(y))
        return x - y


def test_a_skip_around_everything() -> None:
    qmodel = calibrated(Denoiser(6), images())
    blocks = find_blocks(qmodel.model, largest=4)
    assert [found for found in names(blocks) if found] == [[f"convs.{i}"] for i in range(6)]
    check_chain(qmodel, images(), blocks)


class Masked(nn.Module):
    """A mask no layer had a part in, a size, a weight that a function uses, a layer called twice, two results."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mask = (x.sum(-1, keepdim=True) > 0).float()
        x = F.relu(self.a(x)) * mask
        y = F.relu(self.b(x))
        x = F.linear(y, self.weight) * mask
        return self.b(x.reshape(x.size(0), -1, 6)), y


def test_what_crosses_a_cut() -> None:
    x = torch.randn(3, 4, 6)
    qmodel = calibrated(Masked(), x)
    blocks = find_blocks(qmodel.model)
    found = names(blocks)
    assert [*chain(*found)] == ["a", "b", "weight"], "each weight once, where it is first met"
    assert len(blocks) >= 2
    values = {node: value for node, value in zip(qmodel.model.graph.nodes, [x], strict=False)}
    with torch.no_grad():
        for block in blocks:
            results = extract(qmodel.model, block)(*(values[node] for node in block.inputs))
            values.update(zip(block.outputs, results, strict=True))
        outputs = next(iter(reversed(qmodel.model.graph.nodes))).args[0]
        for node, expected in zip(outputs, qmodel(x), strict=True):
            assert torch.equal(values[node], expected)
    assert blocks[0].name.startswith("a.weight")
