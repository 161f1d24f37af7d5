"""Statistics of activations, against the same thing computed by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsebit.batches import DataError
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


def test_norms_of_what_every_call_reads() -> None:
    """A tensor is overwritten before it is read, a layer is called twice, and a batch is one vector."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(self.a(x))
            y[..., :3] *= 4
            out: Tensor = self.b(y)
            return out

    net, x = Net(), torch.randn(6)
    found = measure(capture(net, x), {"input_norm", "input_mean"}, [x])
    with torch.no_grad():
        read = torch.stack([x, net.a(x)])
        after = net.a(read[1]) * torch.tensor([4.0, 4, 4, 1, 1, 1])
    torch.testing.assert_close(found["input_norm"]["a.weight"], read.norm(dim=0).expand(6, 6))
    torch.testing.assert_close(found["input_mean"]["a.weight"], read.abs().mean(0).expand(6, 6))
    torch.testing.assert_close(found["input_norm"]["b.weight"], after.abs().expand(3, 6))


def test_numbers_that_are_not_finite_are_refused_with_their_layer() -> None:
    model, x = perceptron(), DATA[0][0].clone()
    x[0, 0] = torch.inf
    with pytest.raises(DataError, match=r"(?s)'input_norm' is infinite or NaN.*0\.weight.*its input is not"):
        measure(capture(model, x), {"input_norm"}, [x])


def test_only_the_first_weights_of_a_recurrent_layer_read_its_input() -> None:
    net, x = nn.Sequential(nn.LSTM(4, 4, num_layers=2)), torch.randn(3, 2, 4)
    found = measure(capture(net, x), {"input_norm"}, [x])["input_norm"]
    torch.testing.assert_close(found.pop("0.weight_ih_l0"), x.flatten(0, 1).norm(dim=0).expand(16, 4))
    assert sorted(found) == ["0.weight_hh_l0", "0.weight_hh_l1", "0.weight_ih_l1"]
    assert all(bool((one == 1).all()) for one in found.values())  # unknown


def test_positions_of_a_grouped_transposed_convolution_have_outputs_in_every_group() -> None:
    layer = nn.ConvTranspose2d(4, 6, 1, groups=2)
    with torch.no_grad():
        layer.weight[2:, 1] = 0  # of the second group, the second output is constant
    gm = capture(nn.Sequential(layer).eval(), torch.randn(2, 4, 8, 8))
    (found,) = measure(gm, {"feature_rank"}, [torch.randn(3, 4, 8, 8)])["feature_rank"].values()
    # The ranks of three samples, 8 each, or 1 for a constant map.
    assert found.tolist() == [24, (24 + 3) / 2, 24]


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
