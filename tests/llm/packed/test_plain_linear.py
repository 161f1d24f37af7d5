"""A packed layer replaces only what computes a product with its weight, and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.models.llama4.configuration_llama4 import Llama4TextConfig
from transformers.models.llama4.modeling_llama4 import Llama4Router

from sparsebit.llm.packed.plain_linear import multiplies_only


class Residual(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + input


class Twice(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(super().forward(input))


class Renamed(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return torch.addmm(self.bias, input, self.weight.t())


class DependsOnValues(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) if input.sum() > 0 else input


def router() -> nn.Module:
    return Llama4Router(Llama4TextConfig(hidden_size=8, num_local_experts=2, num_experts_per_tok=1))


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(8, 8), True),
        (FalconLinear(8, 4), True),
        (FalconLinear(8, 4, bias=False), True),
        (Renamed(8, 4), True),
        (Residual(8, 8), False),
        (Twice(8, 8), False),
        (DependsOnValues(8, 8), False),
        (router(), False),
        (nn.Conv1d(8, 8, 1), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_computes_a_product_only(module: nn.Module, expected: bool) -> None:
    before = {name: value.clone() for name, value in module.named_parameters()}
    assert multiplies_only(module) is expected
    assert all(torch.equal(value, before[name]) for name, value in module.named_parameters())
