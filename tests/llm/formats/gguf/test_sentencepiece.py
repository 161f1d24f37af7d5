"""BPE on characters: the same tokens in llama.cpp, or a refusal with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.gguf.sentencepiece import SPACE, adds_space, piece_scores
from sparsebit.llm.formats.gguf.tokenizer import add_tokenizer, describe
from sparsebit.llm.proof import TEXTS
from tests.llm.formats.gguf.family_models import needs_llama_cpp, quantized_model
from tests.llm.formats.gguf.test_tokenizer import Writer
from tests.llm.formats.gguf.trained_tokenizers import sentencepiece


@needs_llama_cpp
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma"])
def test_llama_cpp_makes_the_same_tokens(tmp_path: Path, kind: str) -> None:
    model = quantized_model("llama", tokens=sentencepiece(kind))
    report = model.export(tmp_path / "model.gguf", "gguf")
    assert report.proven and report.texts == len(TEXTS), str(report)


def test_keys() -> None:
    writer = Writer()
    tokens = sentencepiece("gemma")
    add_tokenizer(writer, tokens, len(tokens))
    assert (writer.added["tokenizer_model"], writer.added["add_space_prefix"]) == ("llama", False)
    assert writer.added["token_types"][:5] == [3, 3, 2, 6, 6] and writer.added["add_bos_token"] is True
    assert adds_space(describe(sentencepiece("llama"))) and adds_space(describe(sentencepiece("mistral")))


def test_merges_that_scores_cannot_say_are_refused() -> None:
    with pytest.raises(SparsebitError, match="a merge for every pair of tokens that forms a token"):
        piece_scores(describe(sentencepiece("llama", complete=False)))
    model = {"vocab": {"a": 0, "b": 1, "aa": 2, "ab": 3, "aab": 4}}
    merges = [["a", "a"], ["aa", "b"], ["a", "b"], ["a", "ab"]]
    with pytest.raises(SparsebitError, match=r"order of the tokens that they form(.|\n)*'aab' in two places"):
        piece_scores({"model": model | {"merges": merges}, "added_tokens": []})


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("normalizer", {"type": "Lowercase"}, "only replaces spaces(.|\n)*Lowercase"),
        ("normalizer", None, "spaces that are replaced(.|\n)*text as it is"),
        ("pre_tokenizer", {"type": "Whitespace"}, "no pre-tokenizer, or Metaspace"),
        (
            "pre_tokenizer",
            {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": True},
            "tokens with spaces only at the start",
        ),
    ],
)
def test_other_ways_to_prepare_a_text_are_refused(part: str, value: object, message: str) -> None:
    described: dict[str, Any] = describe(sentencepiece("gemma"))
    described["model"]["vocab"][f"a{SPACE}"] = 9999
    described[part] = value
    with pytest.raises(SparsebitError, match=message):
        adds_space(described)


def test_every_byte_needs_a_token() -> None:
    described = describe(sentencepiece("gemma"))
    del described["model"]["vocab"]["<0x07>"]
    with pytest.raises(SparsebitError, match=r"a token for each of 256 bytes(.|\n)*<0x07>"):
        adds_space(described)
