"""Questions with several answers: which one the model finds most likely."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError, advised
from sparsebit.llm.evaluate.perplexity import log_probabilities
from sparsebit.llm.tokens import require_known
from sparsebit.storage import Fields, read_text
from sparsebit.storage.json_text import read_json

MOST_BYTES = 2**30


@dataclass(frozen=True)
class Question:
    """A text, the ways it may go on, and the place of the right one."""

    text: str
    choices: tuple[str, ...]
    answer: int


@dataclass(frozen=True)
class ChoiceScore:
    """How often the right answer was the most likely one: as it is, and by its likelihood per character."""

    accuracy: float
    accuracy_per_character: float
    questions: int


def read_questions(path: str | os.PathLike[str]) -> list[Question]:
    """Questions from a file with one JSON object per line: ``question``, ``choices``, and ``answer`` counted from 0."""
    try:
        text = read_text(path, MOST_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise SparsebitError(
            f"{os.fspath(path)!r} cannot be read", expected="a text file in UTF-8", got=str(error)
        ) from None
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{os.fspath(path)}, line {number}"
        with advised('write each line as {"question": "…", "choices": ["…", "…"], "answer": 0}'):
            said = Fields(read_json(line.encode(), where), where)
            choices = said.texts("choices")
            answer = said.integer("answer")
            if len(choices) < 2 or answer >= len(choices):
                raise said.wrong("answer", "the place of one of at least two choices, counted from 0")
            found.append(Question(said.text("question"), tuple(choices), answer))
    if not found:
        raise SparsebitError(f"{os.fspath(path)!r} has no questions", expected="one JSON object on each line")
    return found


@torch.no_grad()
def answer_questions(model: nn.Module, tokenizer: Any, questions: Sequence[Question]) -> ChoiceScore:
    """Score every choice by the probability of its tokens after the question."""
    if tokenizer is None:
        raise SparsebitError("questions need a tokenizer", hint="set model.tokenizer")
    right = right_per_character = 0
    for question in questions:
        scores = torch.tensor([_score(model, tokenizer, question.text, one) for one in question.choices])
        lengths = torch.tensor([max(len(one), 1) for one in question.choices])
        right += int(scores.argmax()) == question.answer
        right_per_character += int((scores / lengths).argmax()) == question.answer
    return ChoiceScore(right / len(questions), right_per_character / len(questions), len(questions))


def _score(model: nn.Module, tokenizer: Any, text: str, choice: str) -> float:
    """The logarithm of the probability of ``choice`` after ``text``; a space is put between them if there is none."""
    gap = "" if not text or text[-1].isspace() or choice[:1].isspace() else " "
    before = tokenizer(text)["input_ids"]
    both = tokenizer(text + gap + choice)["input_ids"]
    start = max(
        next((i for i, (a, b) in enumerate(zip(before, both, strict=False)) if a != b), len(before)), 1
    )
    ids: Tensor = torch.tensor([both])
    require_known(ids, model)
    predicted = log_probabilities(model, ids)[0, start - 1 : -1]
    return float(predicted.gather(-1, ids[0, start:, None]).sum())
