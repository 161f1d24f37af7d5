"""Statistics of activations, against the same thing computed by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sparsebit.graph.capture import capture
from sparsebit.sparse.evidence.activations import map_ranks
from tests.sparse.evidence.measuring import DATA, measure, measure_model
from tests.sparse.nets import images, perceptron, residual


def test_norms_of_inputs() -> None:
    model = perceptron()
    found = measure_model(model, {"input_norm"})["input_norm"]
    x = torch.cat([batch[0] for batch in DATA])
    torch.testing.assert_close(found["0.weight"], x.norm(dim=0).expand(16, 6))
    torch.testing.assert_close(found["2.weight"], model[1](model[0](x)).norm(dim=0).detach().expand(3, 16))  # type: ignore[index]


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv2d(4, 6, 3, groups=2),
        lambda: nn.Conv2d(4, 4, 3, groups=4),
        lambda: nn.ConvTranspose2d(4, 6, 3),
        lambda: nn.Conv2d(4, 6, 1),
    ],
)
def test_norms_of_inputs_reach_the_weights_they_meet(make: Callable[[], nn.Module]) -> None:
    """A silent input channel has norm 0 exactly where changing the weight changes nothing."""
    layer = make().double()
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    x[:, 1] = 0
    gm = capture(nn.Sequential(layer), x)
    norm = measure(gm, {"input_norm"}, [x])["input_norm"]["0.weight"]
    (gradient,) = torch.autograd.grad(layer(x).square().sum(), [layer.weight])
    assert torch.equal(norm == 0, gradient == 0)


def test_ranks_behind_the_activation() -> None:
    net = residual()
    gm = capture(net, images())
    found = measure(gm, {"feature_rank"}, [images(2), images(2)])["feature_rank"]
    maps = torch.relu(net.bn1(net.conv1(torch.relu(net.bn0(net.stem(images(2)))))))
    expected = torch.linalg.matrix_rank(maps.float()).sum(0).float()
    torch.testing.assert_close(found["conv1.weight"], expected)


def test_ranks_of_maps() -> None:
    value = torch.zeros(2, 3, 4, 4)
    value[:, 1] = torch.eye(4)
    value[:, 2] = 1
    assert map_ranks(value.movedim(1, 0)).tolist() == [0, 8, 2]
    assert map_ranks((torch.tensor([[0.0, 1.0], [0.0, 2.0]])).movedim(-1, 0)).tolist() == [0, 2]
    assert map_ranks((torch.tensor([[[0.0, 1.0], [0.0, 0.0]]])).movedim(-1, 0)).tolist() == [0, 1]
