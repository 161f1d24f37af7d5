"""Tokenizers of every kind that a GGUF file can hold, trained on a few sentences."""

from __future__ import annotations

from typing import Any

import pytest

from sparsebit.llm.formats.gguf.sentencepiece import SPACE
from sparsebit.llm.formats.gguf.tokenizer import GPT4O, LLAMA3, QWEN2, TEKKEN
from sparsebit.llm.proof import TEXTS

CORPUS = [
    *TEXTS,
    "It's the 1st of 12 days: 2024-05-17, 100 or 1000 or 10000?",
    "x = x_1 + 22  # the rain, the river",
] * 3
SPECIAL = ["<s>", "</s>", "<unk>"]


def byte_level(rule: str, *, whole_words_first: bool = False) -> Any:
    """BPE on bytes that splits text by a rule of llama.cpp."""
    tokenizers = pytest.importorskip("tokenizers")
    pre = tokenizers.pre_tokenizers
    words = pre.ByteLevel(add_prefix_space=False)
    plain = pre.ByteLevel(add_prefix_space=False, use_regex=False)
    steps = {
        "gpt-2": [words],
        "smollm": [pre.Digits(individual_digits=True), words],
        "qwen2": [pre.Split(tokenizers.Regex(QWEN2), "isolated"), plain],
        "dbrx": [pre.Split(tokenizers.Regex(LLAMA3), "removed", invert=True), plain],
        "gpt-4o": [pre.Split(tokenizers.Regex(GPT4O), "isolated"), plain],
        "tekken": [pre.Split(tokenizers.Regex(TEKKEN), "isolated"), plain],
        "falcon": [
            pre.Punctuation("contiguous"),
            words,
            pre.Digits(individual_digits=False),
            pre.Split(tokenizers.Regex("[0-9][0-9][0-9]"), "isolated"),
        ],
    }[rule]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=whole_words_first))
    made.pre_tokenizer = steps[0] if len(steps) == 1 else pre.Sequence(steps)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = pre.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=480, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(CORPUS, trainer)
    return _wrapped(made)


def sentencepiece(kind: str, *, complete: bool = True) -> Any:
    """BPE on characters with bytes for unknown ones, prepared as by "llama", "mistral" or "gemma"."""
    tokenizers = pytest.importorskip("tokenizers")
    pre, normalizers = tokenizers.pre_tokenizers, tokenizers.normalizers
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = pre.Metaspace()
    letters = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=560, special_tokens=[*SPECIAL, *letters], show_progress=False
    )
    trained.train_from_iterator([text for text in CORPUS if text.isascii()], trainer)
    vocabulary = dict(sorted(trained.get_vocab().items(), key=lambda item: item[1]))
    pieces = [text for text in vocabulary if text not in SPECIAL and text not in letters and len(text) > 1]
    merges = [
        (text[:place], text[place:])
        for text in pieces
        for place in range(1, len(text))
        if text[:place] in vocabulary and text[place:] in vocabulary
    ]
    if not complete:
        merges = merges[:-1]
    model = tokenizers.models.BPE(
        vocab=vocabulary, merges=merges, byte_fallback=True, fuse_unk=True, unk_token="<unk>"
    )
    made = tokenizers.Tokenizer(model)
    spaces = normalizers.Replace(" ", SPACE)
    if kind == "llama":
        made.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces])
    elif kind == "mistral":
        made.pre_tokenizer = pre.Metaspace(prepend_scheme="first", split=False)
    else:
        made.normalizer = spaces
        made.pre_tokenizer = pre.Split(" ", "merged_with_previous")
    made.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace(SPACE, " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
        ]
    )
    made.add_special_tokens(SPECIAL)
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", vocabulary["<s>"])]
    )
    return _wrapped(made)


def _wrapped(made: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
