"""Adapters over a model: they start as nothing, or as the best approximation of what quantization lost."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.lora import add_lora, remove_lora
from sparsebit.llm.lora.attach import low_rank
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
    remove_lora(model)
    add_lora(model, rank=64, floats=float_model, ids=tokens(64).view(2, 32))
    assert distance(model, float_model) < 1e-3


def test_inputs_decide_which_direction_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    lost = torch.randn(12, 16, generator=generator)
    x = torch.randn(200, 16, generator=generator) * torch.logspace(-2, 1, 16)
    plain, weighted = (low_rank(lost, 3, moments) for moments in (None, x.T @ x / len(x)))
    errors = [((lost - b @ a) @ x.T).norm() for b, a in (plain, weighted)]
    assert errors[1] < 0.8 * errors[0]
    best = torch.linalg.svdvals((lost @ x.T).double())[3:].square().sum().sqrt()
    assert errors[1] == pytest.approx(float(best), rel=1e-2)


def test_what_is_wrong_is_said() -> None:
    model = llm.quantize(sharp("llama"), None, CONFIG, progress=False)
    with pytest.raises(SparsebitError, match="no packed linear layer matches"):
        add_lora(model, layers=("*.nothing",))
    with pytest.raises(SparsebitError, match="at least rank 1"):
        add_lora(model, rank=0)
    with pytest.raises(SparsebitError, match="the float model has no tensor"):
        add_lora(model, floats=torch.nn.Linear(2, 2))
