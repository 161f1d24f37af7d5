"""A model is used without a trace: modes, switches, buffers and random numbers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit import capture
from sparsebit.export.translate.undisturbed import on_cpu, undisturbed, writes_in_place
from tests.export.nets import quantized


class Drawing(nn.Module):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(1)
        return self.fc(x)


@pytest.mark.parametrize("on", [True, False])
def test_everything_is_as_before_also_after_a_failure(on: bool) -> None:
    x = torch.randn(2, 4)
    qmodel = quantized(Drawing(), x)
    qmodel.set_quant(w_quant=True, a_quant=False)
    qmodel.train()
    switches = {name: q.use_quant for name, q in qmodel.quantizers.items()}
    seen, state = qmodel.model.get_buffer("seen").clone(), torch.get_rng_state()
    with pytest.raises(ValueError, match="inside"), undisturbed(qmodel.model, quantized=on):
        assert not qmodel.model.training and all(q.use_quant == on for q in qmodel.quantizers.values())
        torch.rand(3)
        qmodel.model(x)
        raise ValueError("inside")
    assert switches == {name: q.use_quant for name, q in qmodel.quantizers.items()}
    assert qmodel.model.training and torch.equal(qmodel.model.get_buffer("seen"), seen)
    assert torch.equal(torch.get_rng_state(), state)


def test_writes_are_found_and_a_graph_on_the_cpu_is_itself() -> None:
    x = torch.zeros(2, 4)
    writing, plain = capture(Drawing().eval(), x), capture(nn.Linear(4, 4).eval(), x)
    assert writes_in_place(writing) and not writes_in_place(plain)
    table = capture(nn.Embedding(4, 2, max_norm=1.0).eval(), torch.zeros(2, dtype=torch.int64))
    assert writes_in_place(table)
    assert on_cpu(plain) is plain
