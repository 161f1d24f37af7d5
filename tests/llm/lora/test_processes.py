"""One process alone: the loss of a batch, its gradients, and batches that cannot be divided."""

from __future__ import annotations

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.lora import add_lora
from sparsebit.llm.lora.processes import WholeModel, adapters, join_processes, next_token_loss
from tests.llm.models import sharp, tokens


def test_gradients_are_those_of_the_mean_loss() -> None:
    made = llm.quantize(sharp("llama"), None, {"W": {"BIT": 4}, "METHOD": "rtn"}, progress=False)
    add_lora(made, rank=2)
    assert join_processes(made.model) == (0, 1)
    rows = tokens(32).view(2, 16)
    step = WholeModel(made.model, 0, 1, batch=2)
    loss = step.backward(rows)
    assert loss == pytest.approx(float(next_token_loss(made.model(rows).logits.detach(), rows)), rel=1e-5)
    norms = [float(p.grad.norm()) for p in adapters(made.model) if p.grad is not None]
    assert float(step.gradient_norm()) == pytest.approx(sum(norm**2 for norm in norms) ** 0.5, rel=1e-5)
    step.share()
    with pytest.raises(SparsebitError, match="a batch of 3 cannot be divided among 2 processes"):
        WholeModel(made.model, 0, 2, batch=3)
    assert next_token_loss(torch.zeros(1, 2, 4), torch.tensor([[1, 2]])) == pytest.approx(1.3862944)
