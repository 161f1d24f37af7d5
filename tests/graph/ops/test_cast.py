"""Casts: one operator, whichever way a dtype or device is given."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sparsebit.graph.ops.cast import OPS
from tests.graph.ops.sampling import one_node, real, sample

X = real(2, 3)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (sample(Tensor.half, X), {"dtype": torch.float16}),
        (sample(Tensor.to, X, torch.float16), {"dtype": torch.float16}),
        (sample(Tensor.type, X, torch.int32), {"dtype": torch.int32}),
        (sample(Tensor.to, X, "cpu"), {"device": "cpu"}),
        (
            sample(Tensor.to, X, torch.device("cpu"), torch.int8),
            {"dtype": torch.int8, "device": torch.device("cpu")},
        ),
        (sample(Tensor.cpu, X), {"device": "cpu"}),
        (sample(Tensor.to, X, torch.float16, True, True), {"non_blocking": True, "copy": True}),
    ],
)
def test_arguments_are_told_apart_by_their_type(case: Any, expected: dict[str, Any]) -> None:
    call = one_node(case).call
    assert call.spec.name == "to" and {name: call.arguments[name] for name in expected} == expected


def test_a_tensor_as_argument_is_the_one_to_follow() -> None:
    graph = one_node(sample(Tensor.to, X, real(1)))
    assert graph.call.arguments["other"] is graph.nodes[1]


def test_casts_keep_every_element_in_its_place() -> None:
    assert all(spec.elementwise and spec.keeps_zero and spec.view and not spec.moves for spec in OPS)
