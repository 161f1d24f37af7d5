from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx import GraphModule

from sparsebit.graph.capture import capture
from sparsebit.graph.ops import op_name
from sparsebit.graph.passes.unbind_to_select import unbind_to_select, why_not_select
from tests.graph.passes.folding import annotate


def trace(forward: Callable[..., object]) -> GraphModule:
    return fx.symbolic_trace(forward)


def selects(gm: GraphModule) -> list[tuple[object, ...]]:
    return [node.args[1:] for node in gm.graph.nodes if node.target is torch.select]


@pytest.mark.parametrize(
    ("forward", "dim"),
    [
        (lambda x: x.unbind(), 0),
        (lambda x: x.unbind(2), 2),
        (lambda x: x.unbind(-1), 2),
        (lambda x: x.unbind(dim=-2), 1),
        (lambda x: torch.unbind(x), 0),
        (lambda x: torch.unbind(x, -3), 0),
        (lambda x: torch.unbind(input=x, dim=1), 1),
    ],
)
def test_every_spelling_and_dimension(forward: Callable[[Tensor], tuple[Tensor, ...]], dim: int) -> None:
    x = torch.randn(4, 4, 4, dtype=torch.float64)  # equal sizes: a wrong axis is no error, only wrong
    expected = forward(x)
    gm = trace(lambda x: (forward(x)[0], forward(x)[-1] * 2))
    annotate(gm, x)
    assert unbind_to_select(gm) == 2
    assert selects(gm) == [(dim, 0), (dim, -1)]
    first, last = gm(x)
    assert torch.equal(first, expected[0])
    assert torch.equal(last, expected[-1] * 2)


def test_a_negative_dimension_stays_right_where_the_rank_is_unknown() -> None:
    gm, x = trace(lambda x: x.unbind(-1)[1]), torch.randn(3, 3)
    assert unbind_to_select(gm) == 1
    assert selects(gm) == [(-1, 1)]
    assert torch.equal(gm(x), x[:, 1])


def test_what_was_known_about_a_part_is_known_about_its_select() -> None:
    class Attention(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = x.unbind(1)
            return q * k + v

    gm = capture(Attention(), (torch.randn(2, 3, 5),))
    before = {node.args[1]: dict(node.meta) for node in gm.graph.nodes if node.name.startswith("getitem")}
    assert len(before) == 3
    assert unbind_to_select(gm) == 3
    after = {node.args[2]: dict(node.meta) for node in gm.graph.nodes if node.target is torch.select}
    assert after == before
    x = torch.randn(4, 3, 5)
    assert torch.equal(gm(x), Attention()(x))


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda x: (torch.stack(x.unbind(0)), x), "unbind is used as a tuple by stack"),
        (lambda x: x.unbind(0)[:2], "getitem picks a slice"),
        (lambda x: x.unbind(0)[x.shape[0] - 1], "getitem_1 picks a computed part"),
        (lambda x: x.unbind(x.shape[0] - 1)[0], "the dimension of unbind is computed"),
    ],
)
def test_refusals(forward: Callable[[Tensor], object], reason: str) -> None:
    gm = trace(forward)
    assert unbind_to_select(gm) == 0
    (unbind,) = (node for node in gm.graph.nodes if op_name(gm, node) == "unbind")
    assert why_not_select(gm, unbind) == reason


def test_all_parts_stay_where_one_has_to() -> None:
    def forward(x: Tensor) -> Tensor:
        parts = x.unbind(0)
        return parts[0] + torch.stack(parts[1:]).sum()

    gm = trace(forward)
    assert unbind_to_select(gm) == 0
    assert sum(op_name(gm, node) == "unbind" for node in gm.graph.nodes) == 1


def test_split_and_chunk_stay() -> None:
    gm = trace(lambda x: x.split(1)[0] + x.chunk(2)[1])
    assert unbind_to_select(gm) == 0
    split = next(node for node in gm.graph.nodes if node.name == "split")
    assert why_not_select(gm, split) == "split is not an unbind"
