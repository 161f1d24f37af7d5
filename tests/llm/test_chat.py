"""A conversation: the most likely answer, piece by piece, with what was said before."""

from __future__ import annotations

from typing import Any

import pytest

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.chat import Chat
from tests.llm.models import DECODERS, encoder, sharp, tokenizer


def test_answers_are_those_of_generate_and_are_remembered() -> None:
    model = llm.quantize(sharp("llama"), None, {"METHOD": "rtn"}, tokenizer=tokenizer(), progress=False)
    model.model.generation_config.eos_token_id = None
    chat = Chat(model, most_tokens=5)
    with pytest.raises(
        SparsebitError, match=r"the prompt has no tokens\n  got:  ''\n  next: write at least one word"
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


def test_what_cannot_be_asked_is_said_and_forgotten() -> None:
    model = llm.quantize(DECODERS["gpt2"](), None, {"METHOD": "rtn"}, tokenizer=tokenizer(), progress=False)
    model.model.generation_config.eos_token_id = None
    chat = Chat(model, most_tokens=99)
    with pytest.raises(
        SparsebitError, match=r"reads at most 64 tokens[\s\S]*next: start a new Chat, or write less"
    ):
        list(chat.answer("the thing " * 30))
    with pytest.raises(SparsebitError, match=r"the prompt must be a string\n  got: NoneType"):
        list(chat.answer(None))  # type: ignore[arg-type]
    asked = len(model.tokenizer("the")["input_ids"])
    assert len(list(chat.answer("the"))) <= 65 - asked  # until the table of positions is full
    model.tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(SparsebitError, match=r"chat template[\s\S]*got: +roles must alternate"):
        list(Chat(model).answer("the"))
    model.tokenizer.chat_template = "{{ 'a' * 5000000 }}"
    with pytest.raises(SparsebitError, match=r"is too long\n  got: 5000000 characters"):
        list(Chat(model).answer("the"))


def test_an_answer_that_is_not_read_to_its_end_is_kept_as_far_as_it_was() -> None:
    model = llm.quantize(sharp("llama"), None, {"METHOD": "rtn"}, tokenizer=tokenizer(), progress=False)
    model.model.generation_config.eos_token_id = None
    chat = Chat(model, most_tokens=5)
    first = next(iter(chat.answer("the")))
    model.tokenizer.chat_template = "{% for m in messages %}{{ m.role[0] }}{{ m.content }};{% endfor %}"
    asked: list[str] = []
    apply = model.tokenizer.apply_chat_template

    def see(turns: list[dict[str, str]], **options: Any) -> str:
        asked.append(apply(turns, **options))
        return asked[-1]

    model.tokenizer.apply_chat_template = see
    list(chat.answer("they"))
    assert asked == [f"uthe;a{first};uthey;"]


def test_only_quantized_models_that_generate_talk() -> None:
    with pytest.raises(SparsebitError, match="LlamaForCausalLM is not a quantized language model"):
        Chat(sharp("llama"))  # type: ignore[arg-type]
    model = llm.quantize(encoder(), None, {"METHOD": "rtn"}, tokenizer=tokenizer(), progress=False)
    with pytest.raises(
        SparsebitError, match=r"BertModel does not generate text\n  expected: a transformers decoder"
    ):
        Chat(model)
    with pytest.raises(SparsebitError, match="most_tokens: expected a whole number, at least 1"):
        Chat(model, most_tokens=0)
