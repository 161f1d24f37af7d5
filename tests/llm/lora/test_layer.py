"""One adapted layer: the base alone at first, and the sum of both afterwards."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from sparsebit.llm.lora import LoraLinear
from sparsebit.llm.packed.linear import PackedLinear
from tests.llm.packed.test_product import packed


def test_the_sum_of_base_and_adapter_and_what_learns() -> None:
    base = PackedLinear(packed("int4_full"), torch.ones(48))
    layer = LoraLinear(base, rank=4, alpha=8.0)
    x = torch.randn(3, 256)
    assert torch.equal(layer(x), base(x))
    with torch.no_grad():
        layer.lora_B.normal_()
    wanted = F.linear(x, base.weight + 2.0 * layer.lora_B @ layer.lora_A) + 1
    assert torch.allclose(layer(x), wanted, atol=1e-3) and torch.allclose(
        F.linear(x, layer.weight) + 1, wanted, atol=1e-3
    )
    layer(x).sum().backward()
    learned = {name for name, one in layer.named_parameters() if one.grad is not None}
    assert learned == {"lora_A", "lora_B"}
    assert layer(x.bfloat16()).dtype == torch.bfloat16
