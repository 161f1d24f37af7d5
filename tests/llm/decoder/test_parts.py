"""Rows of one matrix for queries, keys and values: how they are split, and how they are moved."""

from __future__ import annotations

import torch

from sparsebit.llm.decoder.parts import Attention, Matrix


def attention(groups: int) -> Attention:
    matrix = Matrix("layer.weight", (64, 64), lambda: torch.eye(64), 0)
    return Attention(inputs=(matrix,), output=matrix, heads=4, kv_heads=2, width=8, scale=1.0, groups=groups)


def test_moved_rows_are_all_queries_then_all_keys_then_all_values() -> None:
    assert attention(1).rows == (32, 16, 16) and attention(2).rows == (16, 8, 8)
    assert torch.equal(attention(1).row_order, torch.arange(64))
    kinds = torch.tensor(([0] * 16 + [1] * 8 + [2] * 8) * 2)  # of the rows, in two groups
    order = attention(2).row_order
    assert kinds[order].tolist() == [0] * 32 + [1] * 16 + [2] * 16
    assert order[:16].tolist() == list(range(16)) and order[16:32].tolist() == list(range(32, 48))


def test_a_matrix_is_named_with_and_without_its_parameter() -> None:
    assert attention(1).output.layer == "layer"
    assert Matrix("experts.up[3]", (1, 1), lambda: torch.eye(1), 0).layer == "experts.up[3]"
