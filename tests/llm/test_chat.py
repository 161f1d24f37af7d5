"""A conversation: the most likely answer, piece by piece, with what was said before."""

from __future__ import annotations

import pytest

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.chat import Chat
from tests.llm.models import sharp, tokenizer


def test_answers_are_those_of_generate_and_are_remembered() -> None:
    model = llm.quantize(sharp("llama"), None, {"METHOD": "rtn"}, tokenizer=tokenizer(), progress=False)
    model.model.generation_config.eos_token_id = None
    chat = Chat(model, most_tokens=5)
    with pytest.raises(
        SparsebitError, match=r"the prompt has no tokens\n  got:  ''\n  next: write some words"
    ):
        list(chat.answer(""))
    answer = "".join(chat.answer("the"))
    ids = model.tokenizer("the", return_tensors="pt")["input_ids"]
    wanted = model.model.generate(ids, max_new_tokens=5, do_sample=False)[0, ids.shape[1] :]
    assert answer == model.tokenizer.decode(wanted, skip_special_tokens=True)
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
    assert len(list(chat.answer("they"))) <= 5


def test_a_tokenizer_is_needed() -> None:
    model = llm.quantize(sharp("llama"), None, {"METHOD": "rtn"}, progress=False)
    with pytest.raises(SparsebitError, match="needs a tokenizer"):
        Chat(model)
