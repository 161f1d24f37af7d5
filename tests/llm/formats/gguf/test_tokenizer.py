"""The keys of a tokenizer: what they hold, the tokens that llama.cpp makes with them, and what is refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from sparsebit.errors import SparsebitError
from sparsebit.llm.engines.llama_cpp import token_ids
from sparsebit.llm.formats.gguf.tokenizer import add_tokenizer, describe, splitting_rule
from sparsebit.llm.proof import TEXTS
from tests.llm.formats.gguf.family_models import needs_llama_cpp, quantized_model
from tests.llm.formats.gguf.trained_tokenizers import byte_level, sentencepiece
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


@needs_llama_cpp
@pytest.mark.parametrize(
    "rule", ["gpt-2", "smollm", "qwen2", "dbrx", "falcon", "llama-bpe", "gpt-4o", "tekken"]
)
def test_llama_cpp_splits_text_as_the_tokenizer_does(tmp_path: Path, rule: str) -> None:
    tokens = byte_level(
        "dbrx" if rule == "llama-bpe" else rule, whole_words_first=rule in ("llama-bpe", "tekken")
    )
    report = quantized_model("llama", tokens=tokens).export(tmp_path / "model.gguf", "gguf")
    assert report.proven and report.texts == len(TEXTS), str(report)
    assert f"it splits {len(TEXTS)} texts into the same tokens as the tokenizer" in str(report)
    assert splitting_rule(describe(tokens)) == rule


def test_a_rule_that_llama_cpp_follows_for_ascii_only_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "sparsebit"):
        assert splitting_rule(describe(byte_level("gpt-4o"))) == "gpt-4o"
    assert "non-ASCII capital letters differently (gpt-4o)" in caplog.text


@needs_llama_cpp
def test_another_rule_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = quantized_model("llama", tokens=byte_level("smollm"))
    monkeypatch.setattr("sparsebit.llm.formats.gguf.tokenizer.splitting_rule", lambda described: "falcon")
    report = model.export(tmp_path / "model.gguf", "gguf")
    assert not report.ok and "texts into tokens that differ from the tokenizer's, such as" in str(report)


def test_what_llama_cpp_does_not_know_is_refused() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    pre = tokenizers.pre_tokenizers
    for splitter in (pre.Whitespace(), pre.ByteLevel(add_prefix_space=True), pre.ByteLevel(use_regex=False)):
        changed: Any = tokenizer()
        changed.backend_tokenizer.pre_tokenizer = splitter
        with pytest.raises(
            SparsebitError, match=r"gguf cannot store this tokenizer(.|\n)*split as in GPT-2, GPT-4o"
        ):
            add_tokenizer(Writer(), changed, VOCABULARY)
    changed = tokenizer()
    changed.backend_tokenizer.normalizer = tokenizers.normalizers.Lowercase()
    with pytest.raises(SparsebitError, match=r"no normalizer, or NFC(.|\n)*Lowercase"):
        add_tokenizer(Writer(), changed, VOCABULARY)
    with pytest.raises(SparsebitError, match="split as in GPT-2, GPT-4o"):
        add_tokenizer(Writer(), byte_level("gpt-2", whole_words_first=True), 1000)
    changed = tokenizer()
    changed.backend_tokenizer.model = tokenizers.models.Unigram([("a", 0.0)])
    with pytest.raises(SparsebitError, match=r"expected: BPE\n +got: +Unigram"):
        add_tokenizer(Writer(), changed, VOCABULARY)
    with pytest.raises(SparsebitError, match="the model has none"):
        add_tokenizer(Writer(), None, VOCABULARY)


def test_tokens_around_a_text() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    for template, starts, ends in (
        ("<s> $A", True, False),
        ("$A </s>", False, True),
        ("<s> $A </s>", True, True),
    ):
        changed: Any = tokenizer()
        changed.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single=template, special_tokens=[("<s>", 0), ("</s>", 1)]
        )
        writer = Writer()
        add_tokenizer(writer, changed, VOCABULARY)
        assert (writer.added["add_bos_token"], writer.added["add_eos_token"]) == (starts, ends)
    changed.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A </s> </s>", special_tokens=[("</s>", 1)]
    )
    with pytest.raises(SparsebitError, match="bos before a text and eos after it"):
        add_tokenizer(Writer(), changed, VOCABULARY)


@needs_llama_cpp
def test_tokens_that_swallow_spaces(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokens = sentencepiece("llama")
    stripping = [
        tokenizers.AddedToken(text, rstrip=True, normalized=False, special=True)
        for text in ("</s>", "<|user|>", "<|end|>")
    ]
    tokens.add_tokens(["<|endoftext|>", *stripping], special_tokens=True)
    report = quantized_model("phi3", tokens=tokens).export(tmp_path / "model.gguf", "gguf")
    assert report.proven, str(report)
    text = "<|user|>\nthe rain<|end|>\n  the river"
    assert token_ids(tmp_path / "model.gguf", [text]) == [list(tokens(text)["input_ids"])]


def test_spaces_that_llama_cpp_keeps_are_said(caplog: pytest.LogCaptureFixture) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokens = sentencepiece("llama")
    tokens.add_tokens([tokenizers.AddedToken("<|left|>", lstrip=True, special=True)], special_tokens=True)
    with caplog.at_level(logging.WARNING, "sparsebit"):
        add_tokenizer(Writer(), tokens, len(tokens))
    assert "llama.cpp keeps the spaces beside <|left|>" in caplog.text
