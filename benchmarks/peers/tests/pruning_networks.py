"""torch.ao's structured-pruning tests on SparseModel: their networks (part of torch), and what they claim about them.

Claims: the smaller network gives what the masked one gave (their tolerances), keeps the shape of its output, and has
fewer parameters; the criteria remove the rows that the tests expect. The state of their classes (parametrizations,
groups, masks as buffers) is not ours. Their LSTM networks also return the LSTM's own output, which a pruned network of
ours keeps as it is: they are asked for their first output alone.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal import common_pruning as theirs

from benchmarks.peers.tests.suite import Suite
from sparsebit.sparse import SparseModel

IMAGE = (1, 1, 28, 28)
NETWORKS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear_linear": (theirs.SimpleLinear, (128, 7)),
    "linear_bias_linear": (theirs.LinearBias, (128, 7)),
    "linear_activation_linear": (theirs.LinearActivation, (128, 7)),
    "linear_activation_functional": (theirs.LinearActivationFunctional, (128, 7)),
    "conv2d_conv2d": (theirs.SimpleConv2d, IMAGE),
    "conv2d_bias_conv2d": (theirs.Conv2dBias, IMAGE),
    "conv2d_activation_conv2d": (theirs.Conv2dActivation, IMAGE),
    "conv2d_padding_conv2d": (theirs.Conv2dPadBias, IMAGE),
    "conv2d_pool_conv2d": (theirs.Conv2dPool, IMAGE),
    "conv2d_pool_flatten_linear": (theirs.Conv2dPoolFlatten, IMAGE),
    "conv2d_pool_flatten_linear_functional": (theirs.Conv2dPoolFlattenFunctional, IMAGE),
    "lstm_linear": (partial(theirs.LSTMLinearModel, 8, 8, 8, 1), (5, 8)),
    "lstm_linear_multiple_layers": (partial(theirs.LSTMLinearModel, 8, 8, 8, 2), (5, 8)),
    "lstm_layernorm_linear": (partial(theirs.LSTMLayerNormLinearModel, 8, 8, 8, 1), (5, 8)),
}


class FirstOutput(nn.Module):
    """A network that returns the first of its outputs."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return _first(self.network(x))


def run_pruning_networks() -> Suite:
    """Every network with three criteria, and the tests of the criteria themselves."""
    suite = Suite(
        "torch.ao structured pruning",
        f"networks of torch {torch.__version__} (torch.testing._internal.common_pruning) and the claims of "
        "test/ao/sparsity/test_structured_sparsifier.py; SparseModel stands in for their pruners",
    )
    for name, (build, shape) in NETWORKS.items():
        for criterion in ("random", "l1norm", "fpgm"):
            suite.run(f"prune_{name}[{criterion}]", partial(_prune, build, shape, criterion))
    suite.run("saliency_pruner_update_mask", _saliency)
    suite.run("fpgm_update_mask", _geometric_median)
    return suite


def _prune(build: Any, shape: tuple[int, ...], criterion: str) -> None:
    torch.manual_seed(0)
    model, x = FirstOutput(build()).eval(), torch.ones(shape)
    small, masked = _shrink(model, x, criterion, 1 / 3)
    with torch.no_grad():
        expected, got, before = masked(x), small(x), model(x)
    fewer = sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    assert got.shape == before.shape, f"the output has shape {tuple(got.shape)}"
    assert torch.isclose(expected, got, rtol=1e-5, atol=1e-7).all(), f"off by {(expected - got).abs().max()}"
    assert fewer, "no parameter was removed"


def _saliency() -> None:
    model = theirs.SimpleLinear()
    rows = torch.arange(1.0, 5)[:, None].expand(4, 4)
    model.linear1.weight = nn.Parameter(rows.clone())
    others = ["seq.*", "linear2"]
    small, _ = _shrink(model.eval(), torch.ones(2, 7), "l1norm", 0.5, ignore=others)
    assert torch.equal(small.get_submodule("linear1").weight, rows[2:])


def _geometric_median() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, bias=False), nn.Conv2d(3, 4, 3, padding=1, bias=False)
    )
    first = torch.tensor([3.0, 2.0, 0.1])[:, None, None, None].expand(3, 1, 3, 3)
    model[0].weight = nn.Parameter(first.clone())
    small, _ = _shrink(model.eval(), torch.ones(1, 1, 32, 32), "fpgm", 0.34)
    assert torch.equal(small.get_submodule("0").weight, first[[0, 2]]), (
        "the filter nearest to the others stays"
    )


def _shrink(
    model: nn.Module, x: Tensor, criterion: str, ratio: float, ignore: list[str] | None = None
) -> tuple[nn.Module, nn.Module]:
    sparser = {"TYPE": "structured", "STRATEGY": criterion, "RATIO": ratio, "ROUND_TO": 1}
    config = {"SPARSER": sparser} | ({"IGNORE": ignore} if ignore else {})
    smodel = SparseModel(model, config, example_inputs=x)
    smodel.calc_params()
    return smodel.shrink(), smodel


def _first(output: Any) -> Tensor:
    found: Tensor = output[0] if isinstance(output, tuple) else output
    return found
