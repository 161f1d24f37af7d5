"""Numbers that leave the graph: refused where they come from the inputs, constants elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor

from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture import capture
from tests.graph.capture.recording.applies import Applies, X, recorded


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda y: y if y.sum() > 0 else -y, "a branch on a tensor's value"),
        (lambda y: y * y.sum().item(), r"item\(\): a tensor's value as a Python number"),
        (lambda y: y * int(y.sum()), r"int\(\): a tensor's value as a Python number"),
        (lambda y: y * float(y.sum()), r"float\(\): a tensor's value as a Python number"),
        (lambda y: [y, -y][y.sum().long() * 0], "a tensor's value as an index"),
        (lambda y: torch.tensor(y.tolist()), r"tolist\(\): a tensor's values as Python numbers"),
        (lambda y: torch.from_numpy(y.detach().numpy()), r"numpy\(\): a tensor's values outside torch"),
        (lambda y: torch.from_numpy(numpy.asarray(y.detach()) * 2), "a tensor's value"),
        (lambda y: y if torch.equal(y, y) else -y, "equal: a tensor's value outside the graph"),
        (lambda y: y if torch.allclose(y, y) else -y, "allclose: a tensor's value outside the graph"),
        (
            lambda y: sum(row for row in y[y.sum(1) < 1e9]),
            "a Python loop over rows whose number depends on the data",
        ),
        (lambda y: y * len([row for row in torch.nonzero(y > -1e9)]), "a Python loop over rows"),
        (lambda y: y if (y > 0).any() and (y < 9).all() else -y, "a branch on a tensor's value"),
        (lambda y: y if max(y[0]) > 0 else -y, "a branch on a tensor's value"),
        (lambda y: {True: y, False: -y}[bool(y.max() < 1e9)], "a branch on a tensor's value"),
    ],
)
def test_a_number_taken_from_the_inputs_is_refused(function: Callable[[Tensor], Any], text: str) -> None:
    with pytest.raises(CaptureError, match=f"the model's control flow depends on its input data: .*{text}"):
        recorded(function)
    with pytest.warns(SpecializationWarning, match=f"{text}.* was fixed to its value for the example inputs"):
        graph = recorded(function, on_data="specialise")
    with torch.no_grad():
        assert graph(X).shape == Applies(function)(X).shape


@pytest.mark.parametrize(
    "function",
    [
        lambda y: y * torch.tensor(2.0).item(),
        lambda y: y * int(torch.ones(3).sum()),
        lambda y: y if torch.zeros(3, device=y.device).any() else -y,
        lambda y: y * float(y.new_full((1,), 3.0)),
        lambda y: y.view(*torch.tensor([2, 8]).tolist()),
        lambda y: y if y.is_floating_point() and y.dim() == 2 and y.is_contiguous() else -y,
        lambda y: y * y.stride(1) * y.element_size(),
        lambda y: (str(y), repr(y), f"{y.shape}", y)[-1],
        lambda y: y if y is not None and y in [y] else -y,
        lambda y: y[y.sum(1) > 0],
        lambda y: torch.where(y > 0, y, -y)[torch.nonzero(y[:, 0] < 99)[:, 0]],
    ],
)
def test_numbers_that_do_not_come_from_the_inputs_are_constants(function: Callable[[Tensor], Any]) -> None:
    model = Applies(function).eval()
    graph = capture(model, X)
    assert not graph.capture_report.of_kind("data", "random")
    assert torch.equal(graph(X * 2), model(X * 2))


def test_comparing_a_tensor_with_none_is_no_read() -> None:
    model = Applies(lambda y: y if y == None else -y).eval()  # noqa: E711
    assert torch.equal(capture(model, X)(X), model(X))
