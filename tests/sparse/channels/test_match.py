"""Two operands: what they share is tied, what one lacks is kept, and a broadcast one is not zero."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.capture import capture
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.match import Operand, match, operand, product_is_zero, sum_product
from sparsebit.sparse.channels.trace import Trace


def make(*shapes: tuple[int, ...]) -> tuple[Trace, list[Labels]]:
    """Values whose last dim has labels of its own."""
    trace = Trace(capture(nn.Linear(4, 4), torch.zeros(2, 4)))
    families = [[Family((len(s) - 1,), trace.sets.fresh(s[-1]))] if s[-1] > 1 else [] for s in shapes]
    return trace, [Labels(shape, family) for shape, family in zip(shapes, families, strict=True)]


def aligned(trace: Trace, value: Labels, rank: int) -> Operand:
    return operand(trace, value, range(rank - value.rank, rank))


def test_what_meets_is_tied() -> None:
    trace, (a, b) = make((2, 4), (4,))
    match(trace, aligned(trace, a, 2), aligned(trace, b, 2), "add")
    assert torch.equal(trace.sets.find(a.families[0].labels), trace.sets.find(b.families[0].labels))


def test_a_tensor_without_labels_keeps_the_size_of_the_other() -> None:
    trace, (a, _) = make((2, 4), (1,))
    plain = Labels((2, 4))
    match(trace, aligned(trace, a, 2), aligned(trace, plain, 2), "add")
    assert trace.simple(a) == []


def test_a_broadcast_operand_is_not_zero_along_the_channels() -> None:
    trace, (a, b) = make((2, 4), (2, 1))
    left, right = aligned(trace, a, 2), aligned(trace, b, 2)
    family = a.families[0]
    assert left.zero_at(family) and not right.zero_at(family)
    assert product_is_zero([left, right], [family]) and not product_is_zero([right], [family])
    assert sum_product(trace, [left, right], [1], "sum") == [] and trace.simple(a)
    assert (
        sum_product(trace, [right, aligned(trace, Labels(a.shape, a.families, zero=False), 2)], [1], "sum")
        == []
    )
    assert trace.simple(a) == []  # what is not zero cannot be left out of a sum
