"""Quantizers switched for a while."""

from __future__ import annotations

from torch import Tensor, nn

from sparsebit.analysis import profile
from tests.analysis.profiling.nets import quantized


def test_it_leaves_switches_and_mode_as_they_were(net: nn.Module, batches: list[Tensor]) -> None:
    qmodel = quantized(net, batches)
    qmodel.set_quant(w_quant=True, a_quant=False)
    qmodel.train()
    before = {name: q.use_quant for name, q in qmodel.quantizers.items()}
    profile(qmodel, batches[0])
    assert before == {name: q.use_quant for name, q in qmodel.quantizers.items()}
    assert qmodel.training
    assert not any(q._forward_pre_hooks for q in qmodel.quantizers.values())
