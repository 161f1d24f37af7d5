"""Quantizers switched for a while."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis import profile
from sparsebit.errors import SparsebitError
from tests.analysis.profiling.nets import quantized


def test_it_leaves_switches_and_mode_as_they_were(net: nn.Module, batches: list[Tensor]) -> None:
    qmodel = quantized(net, batches)
    qmodel.set_quant(w_quant=True, a_quant=False)
    qmodel.train()
    frozen = next(module for module in qmodel.modules() if not list(module.children())).eval()
    before = {name: q.use_quant for name, q in qmodel.quantizers.items()}
    profile(qmodel, batches[0])
    assert before == {name: q.use_quant for name, q in qmodel.quantizers.items()}
    assert qmodel.training and not frozen.training
    assert not any(q._forward_pre_hooks for q in qmodel.quantizers.values())


def test_a_float_model_cannot_be_profiled() -> None:
    with pytest.raises(SparsebitError, match=r"only a QuantModel can be profiled(.|\n)*a Linear"):
        profile(nn.Linear(2, 2), torch.zeros(1, 2))  # type: ignore[arg-type]
