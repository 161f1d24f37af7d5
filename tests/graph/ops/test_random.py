"""Random operators: their arguments, and dropouts that hand on their input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sparsebit.graph.ops.random import OPS
from tests.graph.ops.sampling import one_node, sample


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        (sample(torch.randint, 10, (2, 3)), (0, 10)),
        (sample(torch.randint, 4, 10, (2, 3)), (4, 10)),
        (sample(torch.randint, high=10, size=(2, 3)), (0, 10)),
    ],
)
def test_the_lowest_integer_may_be_left_out(case: Any, expected: tuple[int, int]) -> None:
    call = one_node(case).call
    assert (call.arguments["low"], call.arguments["high"]) == expected and call.arguments["size"] == (2, 3)


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_every_row_draws_and_only_dropouts_are_elementwise(spec: Any) -> None:
    assert spec.random and spec.elementwise == spec.view == (spec.family == "dropout")


def test_dropouts_that_shift_their_input_do_not_move_numbers() -> None:
    moved = {spec.name for spec in OPS if spec.family == "dropout" and spec.moves}
    assert moved == {"dropout", "feature_dropout", "drop_path"}
