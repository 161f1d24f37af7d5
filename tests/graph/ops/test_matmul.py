"""Counting contractions, against torch's own counter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from sparsebit.graph.ops.matmul import count_einsum
from tests.graph.ops.sampling import one_node, real, sample

EQUATIONS = [
    *(
        "bik,bkj->bij",
        "bhid,bhjd->bhij",
        "ij,jk",
        "...ik,...kj->...ij",
        "...ik, kj -> ...ij",
        "i,i->",
        "i,j->ij",
    ),
    *(
        "ij->ji",
        "ijk->ik",
        "bij,bij->b",
        "bi,bi->bi",
        "ijk,jil->kl",
        "nctkv,kvw->nctw",
        "ii->i",
        "bchw,bnchw->bn",
    ),
    *("xij,xjk->", "...i,...i->...", "bid,bjd", "zij,zjk->zik", "bhwc,hkc->bhwk"),
]


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum_counts_what_torch_counts(equation: str) -> None:
    sizes = {letter: 2 + index for index, letter in enumerate(sorted(set(equation) - set("->., ")))}
    left = equation.replace(" ", "").partition("->")[0]
    shapes = [
        (*((2, 3) if "..." in term and len(term) > 3 else ()), *(sizes[i] for i in term.replace("...", "")))
        for term in left.split(",")
    ]
    with FlopCounterMode(display=False) as counter:
        torch.einsum(equation, *(torch.zeros(shape) for shape in shapes))
    assert count_einsum(equation, shapes) == counter.get_total_flops() // 2


@given(st.data())
def test_two_operands_cost_the_product_of_their_sizes(data: st.DataObject) -> None:
    """Batch, free or contracted: as long as something is contracted, every combination is one MAC."""
    letters = data.draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=4, unique=True))
    shared = data.draw(st.lists(st.sampled_from("uvw"), min_size=1, max_size=2, unique=True))
    sizes = {letter: data.draw(st.integers(2, 4)) for letter in [*letters, *shared]}
    cut = data.draw(st.integers(0, len(letters)))
    first, second = [*letters[:cut], *shared], [*shared, *letters[cut:]]
    equation = f"{''.join(first)},{''.join(second)}->{''.join(letters)}"
    expected = 1
    for size in sizes.values():
        expected *= size
    assert (
        count_einsum(equation, [tuple(sizes[i] for i in first), tuple(sizes[i] for i in second)]) == expected
    )


def test_three_operands_are_contracted_from_left_to_right() -> None:
    assert count_einsum("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]) == 2 * 3 * 4 + 2 * 4 * 5


def test_einsum_with_lists_of_indices_is_counted_by_running_it() -> None:
    graph = one_node(sample(torch.einsum, real(2, 3), [0, 1], real(3, 4), [1, 2], [0, 2]))
    assert graph.call.macs == 2 * 3 * 4
