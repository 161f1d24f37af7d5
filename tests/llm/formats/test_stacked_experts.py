"""Experts as one operator: which are taken, and that stacks hold the numbers of each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.llm.decoder.describe import describe_decoder
from sparsebit.llm.decoder.parts import Experts
from sparsebit.llm.formats.matmul_nbits import BlockWeight
from sparsebit.llm.formats.stacked_experts import BITS, Stack, StackedExperts, stack_experts
from tests.llm.decoder.family_models import family_model
from tests.llm.models import tokens


def quantized(**w: object) -> llm.LanguageModel:
    return llm.quantize(family_model("mixtral"), None, {"METHOD": "rtn", "W": w}, progress=False)


def stacked(model: llm.LanguageModel) -> StackedExperts | None:
    experts = describe_decoder(model.model, "a").layers[0].feed_forward
    assert isinstance(experts, Experts)
    return stack_experts(experts, model.weights)


def numbers(stack: Stack, index: int, size: int) -> torch.Tensor:
    points = None if stack.zero_points is None else stack.zero_points[index]
    values = stack.values[index].unflatten(1, (stack.scales.shape[2], -1))
    return BlockWeight(values, stack.scales[index], points, BITS, size).numbers()


@pytest.mark.parametrize("scheme", ["full-range", "affine"])
def test_stacks_hold_the_numbers_of_each_expert(scheme: str) -> None:
    model = quantized(BIT=4, SCHEME=scheme, GROUP_SIZE=16)
    made = stacked(model)
    assert made is not None and made.block_size == 16
    path = "model.layers.0.mlp.experts"
    for index in range(4):
        down = model.weights[f"{path}.down_proj[{index}]"].numbers()
        assert torch.equal(numbers(made.down, index, 16), down)
        gate, up = model.weights[f"{path}.gate_up_proj[{index}]"].numbers().chunk(2)
        found = numbers(made.gate_and_up, index, 16)
        assert torch.equal(found[::2], gate) and torch.equal(found[1::2], up)


def test_widths_at_which_the_operator_rounds_and_float_experts_are_not_stacked() -> None:
    assert stacked(quantized(BIT=3)) is not None, "three bits are stored as four"
    assert stacked(quantized(BIT=8)) is None
    assert stacked(quantized(BIT=4, SPECIFIC={"*.experts": {"BIT": 0}})) is None


@pytest.mark.parametrize("settings", [{"BIT": 8}, {"BIT": 4, "SPECIFIC": {"*.experts": {"BIT": 0}}}])
def test_all_experts_are_computed_where_they_are_not_stacked(
    tmp_path: Path, settings: dict[str, object]
) -> None:
    pytest.importorskip("onnxruntime_genai")
    report = quantized(**settings).export(
        tmp_path / "out", "onnxruntime-genai", ids=tokens(12), rounding_budget=0.0
    )
    assert report.proven and abs(report.divergence or 0) < 1e-9, str(report)
