"""AWQ: the scales of its paper, folded without a change in float, and better for it after rounding."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.methods.awq import Awq
from sparsebit.llm.methods.solver import WeightSpec
from sparsebit.numerics import CodeType
from tests.llm.models import DECODERS, VOCABULARY, tokens


def test_the_search_is_that_of_the_paper() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(200, 32) * torch.logspace(-1.5, 1.5, 32)
    weight, bits, size = torch.randn(8, 32), 3, 16
    spec = WeightSpec(code=CodeType("uint", bits), group_size=size, scale_dtype=torch.float32)
    found = Awq().search([(weight, spec)], inputs.T @ inputs / 200, inputs.abs().mean(0), torch.arange(32))

    def quantized(values: torch.Tensor) -> torch.Tensor:
        groups = values.reshape(-1, size)
        low, high = groups.amin(1, keepdim=True).clamp(max=0), groups.amax(1, keepdim=True).clamp(min=0)
        step = (high - low) / (2**bits - 1)
        zero = (-low / step).round()
        return (((groups / step).round() + zero).clamp(0, 2**bits - 1) - zero).mul(step).reshape(values.shape)

    best = (float("inf"), torch.ones(32))
    for alpha in range(21):
        scale = inputs.abs().mean(0).pow(alpha / 20)
        scale = scale / (scale.max() * scale.min()).sqrt()
        loss = float((inputs @ (quantized(weight * scale) / scale - weight).T).square().sum())
        best = min(best, (loss, scale), key=lambda pair: pair[0])
    assert torch.allclose(found, best[1], rtol=1e-4)


def test_it_helps_where_a_few_channels_are_strong() -> None:
    model, ids = DECODERS["llama"](), tokens(64)[None]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight[::16] *= 12
            layer.post_attention_layernorm.weight[::16] *= 12
    wanted = model(ids).logits.detach()
    config = {"W": {"BIT": 3, "GROUP_SIZE": 32}, "CALIBRATION": {"SAMPLES": 4, "LENGTH": 32}}
    errors = []
    for method in (["rtn"], ["awq", "rtn"]):
        result = llm.quantize(model, tokens(), {**config, "METHOD": method}, progress=False)
        errors.append(float((result.model(ids).logits.detach() - wanted).norm()))
    assert errors[1] < 0.95 * errors[0]


def test_a_model_without_sources_is_refused() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, 32)
            self.blocks = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32))

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.blocks(self.embed(input_ids))  # type: ignore[no-any-return]

    with pytest.raises(SparsebitError, match="awq cannot scale any weight of blocks"):
        llm.quantize(Bare(), tokens(), {"METHOD": ["awq", "rtn"], "W": {"BIT": 4}}, progress=False)
