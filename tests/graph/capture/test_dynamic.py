"""``dynamic=``: proven, or refused with the line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sparsebit
from sparsebit.errors import CaptureError
from sparsebit.graph.capture import capture


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.linear(x)[:, : int(x.size(1) / 2)] * scale


CALL = (torch.randn(2, 6, 4), torch.ones(1))


def test_what_is_free_is_accepted() -> None:
    for dynamic in ({"x": [0]}, {"x": [-3]}, {"x": (0,), "scale": ()}):
        assert capture(Half(), CALL, dynamic=dynamic)(torch.randn(7, 6, 4), CALL[1]).shape == (7, 3, 4)


def test_what_is_not_is_refused_with_its_line() -> None:
    with pytest.raises(
        CaptureError, match=r"dimension 1 of argument 'x' cannot be dynamic: int\(\)"
    ) as error:
        capture(Half(), CALL, dynamic={"x": [0, 1]})
    assert "int(x.size(1) / 2)" in str(error.value.where) and "leave dimension 1 out" in str(error.value.hint)


def test_a_list_is_for_all_arguments_that_have_the_dimension() -> None:
    with pytest.raises(CaptureError, match="dimension 1 of argument 'x' cannot be dynamic"):
        capture(Half(), CALL, dynamic=[1])
    assert capture(nn.ReLU(), CALL[0], dynamic=[0, 1, 2, 5])(torch.ones(1, 2, 3)).shape == (1, 2, 3)


def test_wrong_requests() -> None:
    with pytest.raises(
        CaptureError, match=r"dynamic names 'y', which is not a tensor argument(.|\n)*one of x, scale"
    ):
        capture(Half(), CALL, dynamic={"y": [0]})
    with pytest.raises(CaptureError, match="dimension 3 of 'x', which has 3 dimensions"):
        capture(Half(), CALL, dynamic={"x": [3]})


def test_models_and_the_exported_front_end_take_it() -> None:
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval(), torch.randn(2, 4)
    sparsebit.QuantModel(net, "int8_onnxruntime", example_inputs=(x,), dynamic=[0])
    with pytest.raises(CaptureError, match="cannot be dynamic"):
        sparsebit.QuantModel(net, "int8_onnxruntime", example_inputs=(x,), dynamic=[1])
    with pytest.raises(CaptureError, match="cannot be dynamic"):
        config = {"SPARSER": {"TYPE": "unstructured", "STRATEGY": "l1norm", "RATIO": 0.5}}
        sparsebit.SparseModel(net, config, example_inputs=(x,), dynamic=[1])
    assert capture(net, x, frontend="exported", dynamic=[0])(torch.ones(5, 4)).shape == (5, 2)
    with pytest.raises(CaptureError, match=r"cannot be dynamic: torch\.export fixed it"):
        capture(net, x, frontend="exported", dynamic=[1])
    assert capture(net, dynamic=[0])(x).shape == (2, 2)


@pytest.mark.parametrize("wrong", [3, "x", b"x", True, {"x": 0}, {"x": ["0"]}, torch.zeros(2)])
def test_dimensions_are_listed_by_number(wrong: Any) -> None:
    with pytest.raises(CaptureError, match="dynamic lists dimensions by number"):
        capture(nn.Linear(2, 2), torch.zeros(1, 2), dynamic=wrong)
