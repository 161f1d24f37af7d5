"""Perplexity, divergence and agreement against their definitions."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.evaluate.perplexity import divergence, evaluate
from sparsebit.llm.lora import add_lora, train_lora
from tests.llm.models import ROUTES


class Table(nn.Module):
    """Logits of the next token from a table."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(7, 7, generator=torch.Generator().manual_seed(seed)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table[ids]


def test_they_are_what_they_are_defined_to_be() -> None:
    model, reference = Table(0), Table(1)
    ids = torch.randint(7, (23,), generator=torch.Generator().manual_seed(2))
    found = evaluate(model, ids, reference=reference, length=5, batch=3)
    loss = kl = same = 0.0
    for window in ids[:20].view(4, 5).tolist():
        for place, token in enumerate(window):
            p, q = (one.table[token].detach().softmax(0).tolist() for one in (reference, model))
            kl += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            same += p.index(max(p)) == q.index(max(q))
            if place < 4:
                loss -= math.log(q[window[place + 1]])
    assert found.tokens == 20
    assert found.perplexity == pytest.approx(math.exp(loss / 16), rel=1e-5)
    assert found.divergence == pytest.approx(kl / 20, rel=1e-4)
    assert found.agreement == pytest.approx(same / 20)
    assert evaluate(model, ids, length=5).divergence is None


@pytest.mark.parametrize(("length", "stride"), [(5, 1), (5, 2), (5, 4), (2, 1), (23, 7)])
def test_windows_that_overlap_count_every_token_once(length: int, stride: int) -> None:
    """By the definition, token by token; the model adds up its window, so that more context matters."""

    def model(ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = Table(0)(ids).cumsum(1)
        return logits

    def reference(ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = Table(1)(ids).cumsum(1)
        return logits

    ids = torch.randint(7, (23,), generator=torch.Generator().manual_seed(2))
    found = evaluate(model, ids, reference=reference, length=length, stride=stride, batch=3)
    losses, distances, done = [], [], 0
    for start in range(0, 23 - length + 1, stride):
        window = ids[start : start + length][None]
        q, p = (one(window)[0].detach().double().log_softmax(-1) for one in (model, reference))
        for place in range(length):
            if start + place >= done:
                distances.append(float((p[place].exp() * (p[place] - q[place])).sum()))
                if place:
                    losses.append(-float(q[place - 1, window[0, place]]))
        done = start + length
    assert found.tokens == len(distances) == done
    assert found.perplexity == pytest.approx(math.exp(sum(losses) / len(losses)), rel=1e-5)
    assert found.divergence == pytest.approx(sum(distances) / done, rel=1e-4)


def test_a_stride_that_leaves_tokens_out_is_refused() -> None:
    with pytest.raises(SparsebitError, match=r"leave tokens out[\s\S]*at most 5[\s\S]*6"):
        evaluate(Table(0), torch.zeros(20, dtype=torch.long), length=5, stride=6)


def test_dropout_is_off_and_the_mode_is_as_before() -> None:
    ids = torch.randint(7, (20,), generator=torch.Generator().manual_seed(2))
    models = [nn.Sequential(Table(seed), nn.Dropout(0.9)).train() for seed in range(2)]
    found = evaluate(models[0], ids, reference=models[1], length=5)
    assert found == evaluate(Table(0), ids, reference=Table(1), length=5)
    assert all(module.training for model in models for module in model.modules())


def test_a_perplexity_without_a_number_is_infinite() -> None:
    def certain_and_wrong(ids: torch.Tensor) -> torch.Tensor:
        return 1e4 * nn.functional.one_hot(torch.zeros_like(ids), 7).float()

    assert evaluate(certain_and_wrong, torch.ones(20, dtype=torch.long), length=5).perplexity == math.inf
    undefined = evaluate(lambda ids: torch.full((*ids.shape, 7), torch.nan), torch.arange(5), length=5)
    assert math.isnan(undefined.perplexity)


def test_tokens_that_both_models_exclude_do_not_count() -> None:
    p, q = (torch.tensor([[*logits, -math.inf]]).log_softmax(-1) for logits in ([1.0, 2.0], [1.5, 2.0]))
    assert divergence(p, q) == divergence(p[:, :2], q[:, :2]) > 0
    assert divergence(p[:, [0, 1, 1]], q) == math.inf


def test_too_little_text_is_refused() -> None:
    with pytest.raises(SparsebitError, match="the text has 3 tokens, less than one window"):
        evaluate(Table(0), torch.arange(3), length=5)
    with pytest.raises(SparsebitError, match=r"length: expected a whole number, at least 2\n  got: 1"):
        evaluate(Table(0), torch.arange(3), length=1)
    with pytest.raises(SparsebitError, match="token ids must be integers"):
        evaluate(Table(0), torch.rand(9), length=5)
    with pytest.raises(SparsebitError, match="text needs a tokenizer"):
        evaluate(Table(0), "a text", length=5)  # type: ignore[arg-type]


def test_models_that_do_not_predict_the_next_token_have_no_perplexity() -> None:
    class BertForMaskedLM(torch.nn.Module):
        pass

    with pytest.raises(SparsebitError, match="the model: BertForMaskedLM predicts masked tokens"):
        evaluate(BertForMaskedLM(), torch.arange(8), length=4)
    small = llm.quantize(ROUTES["t5"](), None, {"METHOD": "rtn"}, progress=False)
    with pytest.raises(SparsebitError, match="the model: T5ForConditionalGeneration is an encoder-decoder"):
        small.evaluate(torch.arange(8), length=4)
    add_lora(small, rank=2, layers="*")
    with pytest.raises(SparsebitError, match="the model: T5ForConditionalGeneration is an encoder-decoder"):
        train_lora(small, torch.arange(8), length=4)


def test_a_reference_that_cannot_be_compared_is_named() -> None:
    ids = torch.arange(7).repeat(3)
    with pytest.raises(
        SparsebitError, match=r"reference: str is not a model\n  expected: a module that predicts"
    ):
        evaluate(Table(0), ids, reference="folder", length=5)  # type: ignore[arg-type]
    with pytest.raises(
        SparsebitError,
        match=r"the reference and the model have different vocabularies\n  expected: 7 tokens[\s\S]*8",
    ):
        evaluate(Table(0), ids, reference=lambda rows: torch.zeros(*rows.shape, 8), length=5)
    with pytest.raises(SparsebitError, match="batch: expected a whole number, at least 1"):
        evaluate(Table(0), ids, length=5, batch=0)
