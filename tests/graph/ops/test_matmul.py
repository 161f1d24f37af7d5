"""Products: their work against torch's own counter, and when an operand is a weight."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.graph.ops.sampling import one_node, parameter, real, sample

PRODUCTS = [
    sample(torch.matmul, real(2, 3, 5), real(5, 4)),
    sample(torch.addmm, real(4), real(3, 5), real(5, 4)),
    sample(torch.baddbmm, real(2, 3, 4), real(2, 3, 5), real(2, 5, 4)),
    sample(torch.tensordot, real(2, 3, 5), real(3, 5, 4), 2),
    sample(torch.linalg.multi_dot, [real(2, 9), real(9, 3), real(3, 8)]),
    *(
        sample(torch.einsum, equation, *(real(*shape) for shape in shapes))
        for equation, *shapes in (
            ("bik,bkj->bij", (2, 3, 4), (2, 4, 5)),
            ("...ik, kj -> ...ij", (2, 3, 4), (4, 5)),
            ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)),
            ("i,j->ij", (2,), (3,)),
            ("bchw,bnchw->bn", (2, 3, 4, 5), (2, 6, 3, 4, 5)),
        )
    ),
    sample(torch.einsum, real(2, 3), [0, 1], real(3, 4), [1, 2], [0, 2]),
]


@pytest.mark.parametrize("case", PRODUCTS)
def test_the_work_is_what_torch_counts(case: Any) -> None:
    graph = one_node(case)
    with FlopCounterMode(display=False) as counter:
        graph.run()
    assert graph.call.macs == counter.get_total_flops() // 2


@pytest.mark.parametrize(("right", "placed"), [(parameter(5, 4), "linear"), (real(5, 4), "matmul")])
def test_a_product_with_a_parameter_is_a_linear_layer(right: torch.Tensor, placed: str) -> None:
    call = one_node(sample(torch.matmul, real(3, 5), right)).call
    assert call.placed_as == placed and (call.weight_name is not None) == (placed == "linear")
    assert len(call.activations) == (1 if placed == "linear" else 2)
