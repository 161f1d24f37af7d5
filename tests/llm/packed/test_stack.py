"""Stacked experts stay packed, whichever way a model multiplies by them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsebit import llm
from sparsebit.llm.packed.stack import PackedStack
from sparsebit.numerics import CodeType, Layout, choose_grid
from sparsebit.numerics.packed import PackedTensor
from tests.llm.models import DECODERS, TRANSPOSED_EXPERTS, tokens

CONFIG: dict[str, Any] = {"W": {"BIT": 4}, "METHOD": "gptq", "CALIBRATION": {"SAMPLES": 2, "LENGTH": 16}}


def with_values(model: nn.Module, small: llm.LanguageModel) -> nn.Module:
    """A float copy whose weights have the values that are packed."""
    made: Any = copy.deepcopy(model)
    made.set_experts_implementation("eager")
    parameters = dict(made.named_parameters())
    for record in small.records:
        name, _, expert = record.name.removesuffix("]").partition("[")
        values = small.weights[record.name].numbers()
        place = parameters[name].data[int(expert)] if expert else parameters[name].data
        place.copy_(values.T if record.transposed else values)
    return made  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "llama4"])
def test_a_model_of_experts_is_packed_and_computes_with_the_packed_values(name: str, tmp_path: Path) -> None:
    model = (DECODERS | TRANSPOSED_EXPERTS)[name]()
    small = llm.quantize(model, tokens(), CONFIG, progress=False)
    stacks = [one for one in small.model.modules() if isinstance(one, PackedStack)]
    assert len(stacks) == 2 * model.config.num_hidden_layers  # type: ignore[union-attr]
    assert not any(one.dim() == 3 for one in small.model.parameters())
    ids = tokens(8)[None]
    with torch.no_grad():
        wanted = with_values(model, small)(ids).logits
        torch.testing.assert_close(small(ids).logits, wanted)
    small.save(tmp_path / "saved")
    loaded = llm.LanguageModel.load(tmp_path / "saved")
    assert loaded.nbytes == small.nbytes and loaded.transposed == small.transposed
    half = loaded.model.bfloat16()
    found = half(ids).logits  # with gradients, which some models add to in place
    assert found.dtype == torch.bfloat16 and (found - wanted).norm() < 0.05 * wanted.norm()


def stack(*, transposed: bool) -> tuple[PackedStack, torch.Tensor]:
    torch.manual_seed(0)
    layout = Layout(kind="channel", axes=(0,))
    experts = []
    for weight in torch.randn(3, 16, 8):
        grid = choose_grid(weight.amin(1), weight.amax(1), CodeType("int", 4), layout)
        experts.append(PackedTensor.of(weight, grid))
    floats = torch.stack([one.numbers() for one in experts])
    return PackedStack(experts, transposed=transposed), floats.mT if transposed else floats


@pytest.mark.parametrize("transposed", [False, True])
def test_a_stack_can_be_used_like_the_tensor_it_replaces(transposed: bool) -> None:
    packed, floats = stack(transposed=transposed)
    x = torch.randn(5, 8)
    assert packed.shape == floats.shape and packed.dtype == floats.dtype and len(packed) == 3
    assert packed.transpose(1, 2).equal(floats.transpose(1, 2)) and packed[1:].equal(floats[1:])
    for index in (-1, torch.tensor(1)):
        one, plain = packed[index], floats[index]
        assert one.shape == plain.shape and one[2].equal(plain[2]) and one.T.equal(plain.T)
        wanted = x @ plain if transposed else F.linear(x, plain)
        torch.testing.assert_close(x @ one if transposed else F.linear(x, one), wanted)
        torch.testing.assert_close(F.linear(x, one.T) if transposed else x @ one.T, wanted)
    batch = torch.randn(3, 5, 8)
    wanted = torch.bmm(batch, floats if transposed else floats.mT)
    torch.testing.assert_close(torch.bmm(batch, packed if transposed else packed.mT), wanted)
    with pytest.raises(IndexError):
        packed[3]
    for thing in (packed, packed[0]):
        with pytest.raises(AttributeError, match="no attribute 'gate'"):
            _ = thing.gate
