"""The loss of a batch, and its gradients and curvature, against the same thing computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.batches import Batch, DataError
from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.sparse.evidence.gradients import HessianDiagonalEstimate, measure_loss
from tests.sparse.evidence.measuring import DATA, measure, measure_model
from tests.sparse.nets import perceptron


def weights_of(model: nn.Module) -> list[Tensor]:
    return [model[0].weight, model[2].weight]  # type: ignore[index]


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def test_gradients_and_their_squares() -> None:
    model = perceptron()
    found = measure_model(model, {"gradient", "gradient_square"})
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
    found = measure_model(model, {"hessian_weight"})["hessian_weight"]
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
        (DATA, lambda *_: torch.ones((), requires_grad=True), "loss does not depend on the weights that are"),
        (DATA, lambda output, target: (output * 0).sum(), "'gradient' of the loss is 0 for every weight"),
        ([()], functional.cross_entropy, "an empty tuple"),
    ],
)
def test_data_that_cannot_be_used(data: Any, loss: Any, told: str) -> None:
    gm = capture(perceptron(), DATA[0][0])
    with pytest.raises(DataError, match=told):
        measure(gm, {"gradient"}, data, loss)


def test_the_loss_gets_the_output_and_the_rest() -> None:
    w = torch.ones((), requires_grad=True)
    assert float(measure_loss(Batch((), {}, (2,)), w, lambda output, target: output * target).detach()) == 2
    assert measure_loss(Batch((), {}), {"loss": w}, None) is w


def test_an_output_without_a_loss_needs_one() -> None:
    with pytest.raises(DataError, match=r"no loss to differentiate[\s\S]*pass loss="):
        measure_loss(Batch((), {}), torch.ones(2), None)
