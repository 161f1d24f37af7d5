"""Attention as one operator: its operands, and its work."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

from sparsebit.graph.ops.attention import OPS
from tests.graph.ops.sampling import one_node, real, sample


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_query_key_and_value_are_activations(spec: object) -> None:
    assert spec.activations == ("query", "key", "value")  # type: ignore[attr-defined]
    assert spec.weight is None and spec.random  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.5}])
def test_options_do_not_change_the_work(options: dict[str, object]) -> None:
    call = sample(
        F.scaled_dot_product_attention, real(2, 3, 5, 4), real(2, 3, 5, 4), real(2, 3, 5, 6), **options
    )
    assert one_node(call).call.macs == 2 * 3 * (5 * 5 * 4 + 5 * 5 * 6)
