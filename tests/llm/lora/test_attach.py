"""Adapters over a model: they start as nothing, or as the best approximation of what quantization lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.lora import add_lora, remove_lora
from sparsebit.llm.lora.attach import lora_layers, low_rank, second_moments
from tests.llm.models import sharp, tokens

CONFIG = {"W": {"BIT": 2, "GROUP_SIZE": 32}, "METHOD": "rtn"}


def distance(model: llm.LanguageModel, float_model: torch.nn.Module) -> float:
    ids = tokens(24)[None]
    with torch.no_grad():
        wanted = float_model(ids).logits
        return float((model(ids).logits - wanted).norm() / wanted.norm())


def test_started_from_the_residual_the_model_is_closer_to_float(tmp_path: Path) -> None:
    float_model = sharp("llama")
    float_model.save_pretrained(tmp_path)
    model = llm.quantize(float_model, None, CONFIG, progress=False)
    alone = distance(model, float_model)
    names = add_lora(model, rank=8)
    assert len(names) == 21 and distance(model, float_model) == alone
    assert all(not p.requires_grad for n, p in model.model.named_parameters() if "lora_" not in n)
    remove_lora(model)
    add_lora(model, rank=8, floats=tmp_path)
    from_residual = distance(model, float_model)
    remove_lora(model)
    assert distance(model, float_model) == alone
    add_lora(model, rank=8, floats=float_model, ids=tokens(64).view(2, 32))
    weighted = distance(model, float_model)
    assert from_residual < 0.9 * alone and weighted < 0.9 * alone


@pytest.mark.parametrize(("name", "layers"), [("llama", "*_proj"), ("gpt2", "*.c_*")])
def test_at_full_rank_the_residual_is_exact(name: str, layers: str) -> None:
    float_model = sharp(name)  # GPT-2 stores [in, out], also in layers with as many inputs as outputs
    model = llm.quantize(float_model, None, CONFIG, progress=False)
    add_lora(model, rank=64, layers=layers, floats=float_model, ids=tokens(64).view(2, 32))
    assert distance(model, float_model) < 1e-3


def test_weights_that_were_changed_before_have_no_residual(tmp_path: Path) -> None:
    float_model = sharp("llama")
    config = {**CONFIG, "METHOD": ["smoothquant", "rtn"], "CALIBRATION": {"SAMPLES": 2, "LENGTH": 16}}
    llm.quantize(float_model, tokens(), config, progress=False).save(tmp_path / "saved")
    model = llm.LanguageModel.load(tmp_path / "saved")
    with pytest.raises(
        SparsebitError, match=r"smoothquant changed the weights before(.|\n)*leave floats= out"
    ):
        add_lora(model, rank=8, floats=float_model)
    assert add_lora(model, rank=8) and model.prepared == ("smoothquant",)


def test_files_of_the_whole_model_do_not_lose_its_adapters(tmp_path: Path) -> None:
    model = llm.quantize(sharp("llama"), None, CONFIG, progress=False)
    add_lora(model, rank=2)
    for write in (
        lambda: model.save(tmp_path / "saved"),
        lambda: model.save_pretrained(tmp_path / "pretrained"),
        lambda: model.export(tmp_path / "exported", "onnxruntime-genai"),
    ):
        with pytest.raises(SparsebitError, match=r"the model has adapters(.|\n)*call save_lora"):
            write()
    assert not list(tmp_path.iterdir())
    remove_lora(model)
    model.save(tmp_path / "saved")


def test_inputs_decide_which_direction_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    lost = torch.randn(12, 16, generator=generator)
    x = torch.randn(200, 16, generator=generator) * torch.logspace(-2, 1, 16)
    plain, weighted = (low_rank(lost, 3, moments) for moments in (None, x.T @ x / len(x)))
    errors = [((lost - b @ a) @ x.T).norm() for b, a in (plain, weighted)]
    assert errors[1] < 0.8 * errors[0]
    best = torch.linalg.svdvals((lost @ x.T).double())[3:].square().sum().sqrt()
    assert errors[1] == pytest.approx(float(best), rel=1e-2)


class _Router(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 4)
        self.even, self.odd = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(ids)
        return self.even(x[ids % 2 == 0]), self.odd(x[ids % 2 == 1])


def test_layers_that_no_token_reaches_have_no_moments() -> None:
    found = second_moments(_Router(), ["even", "odd"], torch.zeros(2, 3, dtype=torch.long))
    assert list(found) == ["even"] and bool(found["even"].isfinite().all())


def count(model: llm.LanguageModel) -> int:
    return sum(1 for _ in lora_layers(model.model))


def test_what_is_wrong_is_said_and_changes_nothing() -> None:
    model = llm.quantize(sharp("llama"), None, CONFIG, progress=False)
    learning = [parameter.requires_grad for parameter in model.model.parameters()]
    other = sharp("gpt2")
    wrong: list[tuple[dict[str, Any], str]] = [
        (
            {"layers": ("*.nothing",)},
            r"no packed linear layer matches\n  expected: layers= with some of \*.q_proj",
        ),
        ({"rank": 0}, "rank: expected a whole number, at least 1"),
        ({"dropout": 2.0}, "dropout: expected a number, at least 0 and less than 1"),
        ({"alpha": float("nan")}, "alpha: expected a number above 0"),
        ({"floats": torch.nn.Linear(2, 2)}, "the float model has no tensor"),
        ({"floats": narrow()}, r"the weight of the float model has another size[\s\S]*got: +\(32, 32\)"),
        ({"ids": tokens(8)[None]}, "ids= has an effect only with floats="),
    ]
    for arguments, told in wrong:
        with pytest.raises(SparsebitError, match=told):
            add_lora(model, **arguments)
    assert count(model) == 0
    assert learning == [parameter.requires_grad for parameter in model.model.parameters()]
    with pytest.raises(
        SparsebitError, match=r"GPT2LMHeadModel is not a quantized language model\n  expected"
    ):
        add_lora(other)  # type: ignore[arg-type]
    small = llm.quantize(other, None, CONFIG, progress=False)
    with pytest.raises(SparsebitError, match="reads at most 64 tokens at once"):
        add_lora(small, floats=other, ids=tokens(80)[None])


def narrow() -> torch.nn.Module:
    return torch.nn.ModuleDict(
        {"model": torch.nn.ModuleDict({"layers": torch.nn.ModuleList([Narrow() for _ in range(3)])})}
    )


class Narrow(torch.nn.Module):
    """A block with a projection of another size."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(32, 32)})


def test_a_layer_has_one_adapter_and_a_model_adapters_of_one_kind() -> None:
    model = llm.quantize(sharp("llama"), None, CONFIG, progress=False)
    assert len(add_lora(model, rank=2, layers="*.q_proj")) == 3  # one pattern, not its letters
    for layers in ("*.q_proj", "*"):
        with pytest.raises(
            SparsebitError, match=r"already has an adapter\n  where: model.layers.0.self_attn.q_proj"
        ):
            add_lora(model, rank=2, layers=layers)
    with pytest.raises(SparsebitError, match=r"the same rank, alpha and dropout[\s\S]*got: +rank=4, alpha=8"):
        add_lora(model, rank=4, layers="*.v_proj")
    assert len(add_lora(model, rank=2, layers="*.v_proj")) == 3 and count(model) == 6
    learning = [name for name, one in model.model.named_parameters() if one.requires_grad]
    assert len(learning) == 12 and all("lora_" in name for name in learning)
