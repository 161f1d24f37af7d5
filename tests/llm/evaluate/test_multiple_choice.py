"""Questions with choices: read line by line, scored by the probability of the choice behind the question."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.evaluate.multiple_choice import Question, answer_questions, read_questions
from tests.llm.models import DECODERS, tokenizer


class Letters:
    """One token for each letter."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 128 for letter in text]}


class NextLetter(nn.Module):
    """Expects the letter that follows the last one in the alphabet."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return 5.0 * torch.nn.functional.one_hot((ids + 1) % 128, 128)


def test_the_likely_choice_wins_and_length_is_weighed() -> None:
    right = Question("ab ", ("cde", "xqz"), 0)
    # Many likely letters are less likely than one unlikely letter.
    long = Question("ab ", ("q", "abcdefgh"), 1)
    score = answer_questions(NextLetter(), Letters(), [right, long])
    unsure = nn.Sequential(NextLetter(), nn.Dropout(0.99)).train()
    assert answer_questions(unsure, Letters(), [right, long]) == score and unsure.training
    assert score.accuracy == 0.5 and score.accuracy_per_character == 1.0 and score.questions == 2
    assert answer_questions(NextLetter(), Letters(), [Question("a", ("x", "y"), 1)]).questions == 1


class Joining(Letters):
    """Letters, but a space before "y" is part of its token."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return super().__call__(text.replace(" y", ";"))


def test_choices_that_are_joined_with_the_question_are_scored_like_the_others() -> None:
    # ";" is likely after ":", and "!" after a space; but a space is not likely after ":".
    score = answer_questions(NextLetter(), Joining(), [Question("a: ", ("!", "y"), 1)])
    assert score.accuracy == 1.0


def test_mistakes_in_the_file_are_named(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    good = {"question": "2 + 2 =", "choices": ["4", "5"], "answer": 0}
    file.write_text(json.dumps(good) + "\n\n" + json.dumps({**good, "answer": 2}))
    with pytest.raises(SparsebitError, match="answer") as caught:
        read_questions(file)
    assert "line 3" in str(caught.value)
    file.write_text(json.dumps(good))
    assert read_questions(file) == [Question("2 + 2 =", ("4", "5"), 0)]
    file.write_text("not json")
    with pytest.raises(SparsebitError, match=r"line 1[\s\S]*next: write each line as {\"question\": "):
        read_questions(file)
    file.write_text("")
    with pytest.raises(SparsebitError, match="has no questions"):
        read_questions(file)
    file.write_bytes(b"\xff\xfe")
    for unreadable in (file, tmp_path / "gone.jsonl"):
        with pytest.raises(SparsebitError, match="cannot be read"):
            read_questions(unreadable)


@pytest.mark.parametrize(
    ("choices", "answer", "told"),
    [
        ((), 0, "at least two choices, none of them empty"),
        (("that", " "), 0, "at least two choices, none of them empty"),  # no token is more likely than any
        (("a", "b"), 2, r"the answer is not one of the choices\n  expected: from 0 to 1\n  got:      2"),
    ],
)
def test_a_question_without_real_choices_is_refused(choices: tuple[str, ...], answer: int, told: str) -> None:
    with pytest.raises(SparsebitError, match=told):
        Question("the thing", choices, answer)


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(SparsebitError, match="there are no questions"):
        answer_questions(NextLetter(), Letters(), [])
    with pytest.raises(SparsebitError, match="nothing comes before the choices"):
        answer_questions(NextLetter(), Letters(), [Question("", ("a", "b"), 0)])
    broken = NextLetter()
    broken.forward = lambda ids: torch.full((*ids.shape, 128), float("nan"))  # type: ignore[method-assign]
    with pytest.raises(SparsebitError, match=r"the model computes NaN\n  where: the question 'ab'"):
        answer_questions(broken, Letters(), [Question("ab", ("c", "d"), 0)])
    with pytest.raises(SparsebitError, match="reads at most 64 tokens at once"):
        answer_questions(DECODERS["gpt2"](), tokenizer(), [Question("the " * 99, ("a", "b"), 0)])
