"""Facts about tensors: properties, and what Python reads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sparsebit.graph.ops.size import OPS
from tests.graph.ops.sampling import one_node, real, sample


@pytest.mark.parametrize(
    ("attribute", "name"),
    [
        *(("shape", "size"), ("ndim", "dim"), ("T", "t"), ("mT", "matrix_transpose"), ("real", "real")),
        *(("data", "detach"), ("dtype", "dtype"), ("device", "device"), ("requires_grad", "getattr")),
    ],
)
def test_a_property_is_the_operator_of_its_meaning(attribute: str, name: str) -> None:
    assert one_node(sample(getattr, real(2, 3), attribute)).call.spec.name == name


@pytest.mark.parametrize(
    ("target", "name"),
    [(Tensor.nelement, "numel"), (Tensor.ndimension, "dim"), (torch.numel, "numel"), (Tensor.__len__, "len")],
)
def test_spellings_of_one_fact_are_one(target: object, name: str) -> None:
    assert one_node(sample(target, real(2, 3))).call.spec.name == name  # type: ignore[arg-type]


def test_facts_carry_no_activations_and_cost_nothing() -> None:
    assert all(not spec.activations and spec.macs is None and not spec.effect for spec in OPS)
