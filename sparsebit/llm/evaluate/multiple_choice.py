"""Questions with several answers: which one the model finds most likely."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.batches import device_of
from sparsebit.errors import ArtifactError, SparsebitError, advised
from sparsebit.graph.run import evaluating
from sparsebit.llm.evaluate.perplexity import log_probabilities
from sparsebit.llm.tokens import require_known, require_positions
from sparsebit.storage import Fields, read_text
from sparsebit.storage.json_text import read_json

MOST_BYTES = 2**30


@dataclass(frozen=True)
class Question:
    """A text, its possible continuations, and the index of the right one."""

    text: str
    choices: tuple[str, ...]
    answer: int

    def __post_init__(self) -> None:
        if len(self.choices) < 2 or not all(one.strip() for one in self.choices):
            raise SparsebitError(
                "a question needs at least two choices, none of them empty", got=str(list(self.choices))[:80]
            )
        if not 0 <= self.answer < len(self.choices):
            raise SparsebitError(
                "the answer is not one of the choices",
                expected=f"from 0 to {len(self.choices) - 1}",
                got=str(self.answer),
            )


@dataclass(frozen=True)
class ChoiceScore:
    """How often the right answer was the most likely, by its likelihood and by its likelihood per character."""

    accuracy: float
    accuracy_per_character: float
    questions: int


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """Questions from a file with one JSON object per line: ``question``, ``choices``, and ``answer`` counted from 0."""
    try:
        text = read_text(path, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise SparsebitError(
            f"{os.fspath(path)!r} cannot be read", expected="a UTF-8 text file", got=str(error)
        ) from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{os.fspath(path)}, line {number}"
        with advised('write each line as {"question": "…", "choices": ["…", "…"], "answer": 0}'):
            said = Fields(read_json(line.encode(), where), where)
            text, choices, answer = said.text("question"), said.texts("choices"), said.integer("answer")
            try:
                found.append(Question(text, tuple(choices), answer))
            except SparsebitError as error:
                raise ArtifactError(
                    error.message, where=where, expected=error.expected, got=error.got
                ) from None
    if not found:
        raise SparsebitError(f"{os.fspath(path)!r} has no questions", expected="one JSON object on each line")
    return found


@torch.no_grad()
def answer_questions(model: nn.Module, tokenizer: Any, questions: Sequence[Question]) -> ChoiceScore:
    """Score every choice by the probability of its tokens after the question."""
    if tokenizer is None:
        raise SparsebitError("questions need a tokenizer", hint="set model.tokenizer")
    if not questions:
        raise SparsebitError("there are no questions", hint="read_questions(path) reads them from a file")
    right = right_per_character = 0
    with evaluating(model):
        for question in questions:
            scores = torch.tensor(_scores(model, tokenizer, question))
            lengths = torch.tensor([max(len(one), 1) for one in question.choices])
            right += int(scores.argmax()) == question.answer
            right_per_character += int((scores / lengths).argmax()) == question.answer
    return ChoiceScore(right / len(questions), right_per_character / len(questions), len(questions))


def _scores(model: nn.Module, tokenizer: Any, question: Question) -> list[float]:
    """The logarithm of the probability of each choice after the question; spaces are put between them if missing.

    A tokenizer may join the end of the question with one choice and not with another. So all choices are scored from
    the first token at which any of them differs from the question.
    """
    text = question.text
    before = tokenizer(text)["input_ids"]
    if not before:
        raise SparsebitError(
            "nothing comes before the choices, so the first token of each cannot be scored",
            got=f"the question {text!r}",
            hint="write the question, or use a tokenizer that starts every text with a special token",
        )
    tokens = []
    for choice in question.choices:
        gap = "" if not text or text[-1].isspace() or choice[:1].isspace() else " "
        tokens.append(tokenizer(text + gap + choice)["input_ids"])
    start = max(min(_common(before, both) for both in tokens), 1)
    scores = [_score(model, both, start) for both in tokens]
    if any(math.isnan(score) for score in scores):
        raise SparsebitError("the model computes NaN", where=f"the question {text[:80]!r}")
    return scores


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens at the beginning are the same."""
    return next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), len(first))


def _score(model: nn.Module, tokens: Sequence[int], start: int) -> float:
    """The logarithm of the probability of the tokens from ``start`` on."""
    ids: Tensor = torch.tensor([tokens], device=device_of(model))
    require_known(ids, model)
    require_positions(len(tokens), model, "the length of a question with its choice, in tokens, to at most ")
    predicted = log_probabilities(model, ids)[0, start - 1 : -1]
    return float(predicted.gather(-1, ids[0, start:, None]).double().sum())
