"""What criteria need, against the same thing computed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.batches import DataError
from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.sparse.evidence.gather import gather
from sparsebit.sparse.evidence.gradients import HessianDiagonalEstimate
from sparsebit.sparse.evidence.statistic import STATISTICS
from sparsebit.sparse.layers import find_layers
from sparsebit.sparse.masking.masked_graph import MaskedGraph
from tests.sparse.nets import images, labels, perceptron, residual

DATA = [
    (torch.randn(5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(i)), torch.arange(5) % 3)
    for i in range(3)
]


def measure(
    gm: CapturedModule, needs: set[str], data: Any, loss: Any = None, extra: Any = (), **statistics: Any
) -> Any:
    statistics = {name: STATISTICS[name] for name in needs} | statistics
    return gather(MaskedGraph(gm), find_layers(gm), statistics, data, loss, extra=extra)


def collect(model: nn.Module, needs: set[str], data: Any = DATA, loss: Any = functional.cross_entropy) -> Any:
    return measure(capture(model, data[0][0]), needs, data, loss)


def weights_of(model: nn.Module) -> list[Tensor]:
    return [model[0].weight, model[2].weight]  # type: ignore[index]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def test_gradients_and_their_squares() -> None:
    model = perceptron()
    found = collect(model, {"gradient", "gradient_square"})
    each = [torch.autograd.grad(loss_of(model, batch), weights_of(model)) for batch in DATA]
    for position, name in enumerate(("0.weight", "2.weight")):
        stacked = torch.stack([gradients[position] for gradients in each])
        torch.testing.assert_close(found["gradient"][name], stacked.mean(0))
        torch.testing.assert_close(found["gradient_square"][name], stacked.square().mean(0))


def whole_hessian(model: nn.Module) -> Tensor:
    names = [name for name, _ in model.named_parameters() if name.endswith("weight")]
    shapes = [model.get_parameter(name).shape for name in names]
    sizes = [shape.numel() for shape in shapes]

    def loss(flat: Tensor) -> Tensor:
        parts = {
            name: part.view(shape) for name, part, shape in zip(names, flat.split(sizes), shapes, strict=True)
        }
        outputs = [torch.func.functional_call(model, parts, (x,)) for x, _ in DATA]
        values = [functional.cross_entropy(output, y) for output, (_, y) in zip(outputs, DATA, strict=True)]
        return torch.stack(values).mean()

    flat = torch.cat([model.get_parameter(name).detach().flatten() for name in names])
    hessian: Tensor = torch.autograd.functional.hessian(loss, flat)  # type: ignore[no-untyped-call]
    return hessian


def test_the_hessian_times_the_weights() -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    found = collect(model, {"hessian_weight"})["hessian_weight"]
    flat = torch.cat([weight.detach().flatten() for weight in weights_of(model)])
    together = torch.cat([found[name].flatten() for name in ("0.weight", "2.weight")])
    torch.testing.assert_close(together, whole_hessian(model) @ flat)


def test_the_diagonal_of_the_hessian() -> None:
    """Where no weight meets another, the estimate is exact with one draw."""
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    scale = torch.arange(1.0, 5.0, dtype=torch.float64)
    gm = capture(nn.Sequential(nn.Linear(1, 4, bias=False)).double(), x)

    def loss(output: Tensor) -> Tensor:
        return (scale * output.square()).sum()

    for samples in (1, 3):
        estimate = HessianDiagonalEstimate(samples=samples)
        found = measure(gm, set(), [x, 2 * x], loss, hessian_diagonal=estimate)
        exact = (2 * scale * (5 + 20) / 2)[:, None]
        torch.testing.assert_close(found["hessian_diagonal"]["0.weight"], exact)


def test_norms_of_inputs() -> None:
    model = perceptron()
    found = collect(model, {"input_norm"})["input_norm"]
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


def test_the_model_stays_as_it_is() -> None:
    net = residual().train()
    net.stem.weight.requires_grad_(False)
    gm = capture(net, images())
    before = {name: value.clone() for name, value in gm.state_dict().items()}
    data = [(images(), labels())]
    found = measure(gm, {"gradient", "input_norm"}, data, functional.cross_entropy, ["bn1.weight"])
    assert "bn1.weight" in found["gradient"]
    assert bool((found["gradient"]["stem.weight"] != 0).any())
    assert not net.stem.weight.requires_grad
    assert gm.training
    assert net.conv1.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in gm.state_dict().items())


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        out = self.layer(x)
        return {"out": out, "loss": out.square().mean()}


def test_a_loss_in_the_output_needs_no_other() -> None:
    gm: CapturedModule = capture(WithLoss(), torch.randn(2, 3))
    found = measure(gm, {"gradient"}, [{"x": torch.randn(2, 3)}])
    assert bool((found["gradient"]["layer.weight"] != 0).all())


@pytest.mark.parametrize(
    ("data", "loss", "told"),
    [
        ([], functional.cross_entropy, "gave no batches"),
        (DATA, None, "no loss to differentiate"),
        (DATA, lambda output, target: output, "not a number that depends on the weights"),
        (DATA, lambda output, target: output.detach().sum(), "not a number that depends on the weights"),
        ([()], functional.cross_entropy, "an empty tuple"),
    ],
)
def test_data_that_cannot_be_used(data: Any, loss: Any, told: str) -> None:
    gm = capture(perceptron(), DATA[0][0])
    with pytest.raises(DataError, match=told):
        measure(gm, {"gradient"}, data, loss)
