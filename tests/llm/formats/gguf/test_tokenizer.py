"""The keys of a tokenizer: what they hold, and which tokenizers are refused."""

from __future__ import annotations

from typing import Any

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.gguf.tokenizer import add_tokenizer
from tests.llm.models import VOCABULARY, tokenizer


class Writer:
    """Keeps what is added, by the name of the method."""

    def __init__(self) -> None:
        self.added: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        return lambda value: self.added.update({name.removeprefix("add_"): value})


def test_every_id_has_a_token() -> None:
    writer = Writer()
    add_tokenizer(writer, tokenizer(), VOCABULARY + 2)
    assert writer.added["tokenizer_pre"] == "gpt-2"
    assert writer.added["token_list"][:3] == ["<s>", "</s>", "<pad>"]
    assert writer.added["token_list"][-1] == f"[unused{VOCABULARY + 1}]"
    assert writer.added["token_types"][:4] == [3, 3, 3, 1] and writer.added["token_types"][-1] == 5
    assert writer.added["token_merges"] == ["t h"]
    assert writer.added["eos_token_id"] == 1 and writer.added["add_bos_token"] is False


def test_more_tokens_than_the_model_has_are_refused() -> None:
    with pytest.raises(
        SparsebitError, match=f"tokens that the model does not know(.|\n)*up to {VOCABULARY - 1}"
    ):
        add_tokenizer(Writer(), tokenizer(), VOCABULARY - 1)


def test_rules_that_llama_cpp_does_not_know_are_refused() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    changed: Any = tokenizer()
    changed.backend_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    with pytest.raises(SparsebitError, match="gguf cannot store this tokenizer"):
        add_tokenizer(Writer(), changed, VOCABULARY)
    with pytest.raises(SparsebitError, match="the model has none"):
        add_tokenizer(Writer(), None, VOCABULARY)
