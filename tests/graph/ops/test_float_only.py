"""Operators that stay in float: known, and nothing more."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.float_only import OPS
from sparsebit.graph.ops.lookup import find_class, find_function


@pytest.mark.parametrize("spec", OPS, ids=lambda spec: spec.name)
def test_a_row_claims_nothing_that_lets_it_be_quantized_or_pruned(spec: object) -> None:
    facts = ("moves", "keeps_zero", "homogeneous", "elementwise", "weight", "macs", "bounds")
    assert not any(getattr(spec, fact) for fact in facts)


@pytest.mark.parametrize("name", ["CrossEntropyLoss", "MSELoss", "KLDivLoss", "BCEWithLogitsLoss"])
def test_a_loss_is_one_operator_as_module_and_as_function(name: str) -> None:
    functions = {"CrossEntropyLoss": F.cross_entropy, "MSELoss": F.mse_loss, "KLDivLoss": F.kl_div}
    module = find_class(getattr(nn, name))
    function = find_function(functions.get(name, F.binary_cross_entropy_with_logits))
    assert module is not None and function is not None and module.spec is function.spec


@pytest.mark.parametrize(("old", "new"), [(torch.inverse, torch.linalg.inv), (torch.det, torch.linalg.det)])
def test_older_spellings_mean_the_same(old: object, new: object) -> None:
    first, second = find_function(old), find_function(new)
    assert first is not None and second is not None and first.spec is second.spec
