"""A tokenizer as the keys of a GGUF file: byte-level BPE, or SentencePiece's character BPE.

A GGUF file cannot describe how a tokenizer splits text; it names one of llama.cpp's built-in rules. A tokenizer that
splits differently is refused: its file would load, but the model would see different tokens from those it was trained
with. llama.cpp does not normalize text either, so it differs on texts that NFC would change.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.gguf.sentencepiece import adds_space, piece_scores, refuse_tokenizer

logger = logging.getLogger(__name__)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

# llama.cpp's name of a splitting rule, by the steps of tokenizer.json.
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
_CAPITALS, _SMALL = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _CONTRACTION = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_AFTER = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEKKEN = rf"{_BEFORE}{_CAPITALS}*{_SMALL}+|{_BEFORE}{_CAPITALS}+{_SMALL}*|\p{{N}}{_AFTER}"
GPT4O = (
    rf"{_BEFORE}{_CAPITALS}*{_SMALL}+{_CONTRACTION}|{_BEFORE}{_CAPITALS}+{_SMALL}*{_CONTRACTION}"
    rf"|\p{{N}}{{1,3}}{_AFTER}"
)
_RULES: dict[tuple[str, ...], str] = {
    ("words",): "gpt-2",
    ("each digit", "words"): "smollm",
    (QWEN2, "bytes"): "qwen2",
    (LLAMA3, "bytes"): "dbrx",
    (GPT4O, "bytes"): "gpt-4o",
    ("punctuation", "words", "numbers", "[0-9][0-9][0-9]"): "falcon",
}
# With ignore_merges: a word that is itself a token is not split.
_WHOLE_WORDS_FIRST: dict[tuple[str, ...], str] = {(LLAMA3, "bytes"): "llama-bpe", (TEKKEN, "bytes"): "tekken"}
_ASCII_CAPITALS = ("gpt-4o", "tekken")  # llama.cpp treats other letters as both upper and lower case


def add_tokenizer(writer: Any, tokenizer: Any, size: int) -> None:
    """Add every key that llama.cpp needs, for a vocabulary of ``size`` ids."""
    if tokenizer is None:
        raise SparsebitError(
            "a gguf file needs a tokenizer, and the model has none",
            hint="put the tokenizer's files into the float model's folder, or pass tokenizer= to quantize",
        )
    described = describe(tokenizer)
    model, added = described["model"], described["added_tokens"]
    rule = splitting_rule(described)
    scores = piece_scores(described) if rule is None else {}
    largest = max([*model["vocab"].values(), *(one["id"] for one in added)], default=-1)
    if largest >= size:
        raise SparsebitError(
            "the tokenizer has tokens that the model does not know",
            expected=f"ids from 0 to {size - 1}",
            got=f"ids up to {largest}",
            hint="use this model's own tokenizer",
        )
    tokens = [f"[unused{index}]" for index in range(size)]
    kinds = [UNUSED] * size
    for text, index in model["vocab"].items():
        tokens[index], kinds[index] = text, NORMAL
        if rule is None and len(text) == 6 and text.startswith("<0x"):
            kinds[index] = BYTE
    for one in added:
        tokens[one["id"]] = one["content"]
        kinds[one["id"]] = CONTROL if one["special"] else USER_DEFINED
    if rule is None:
        if (unknown := model["vocab"].get(model.get("unk_token"))) is not None:
            kinds[unknown] = UNKNOWN
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores([scores.get(text, 0.0) for text in tokens])
        writer.add_add_space_prefix(adds_space(described))
    else:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(rule)
        writer.add_token_merges([one if isinstance(one, str) else " ".join(one) for one in model["merges"]])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    _add_ends(writer, tokenizer)
    _add_stripping(writer, added)
    if isinstance(getattr(tokenizer, "chat_template", None), str):
        writer.add_chat_template(tokenizer.chat_template)


def describe(tokenizer: Any) -> dict[str, Any]:
    """The contents of tokenizer.json; tokenizers other than BPE are refused."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described: dict[str, Any] = json.loads(backend.to_str()) if backend is not None else {"model": {}}
    if described["model"].get("type") != "BPE":
        refuse_tokenizer("BPE", described["model"].get("type") or type(tokenizer).__name__)
    return described


def splitting_rule(described: dict[str, Any]) -> str | None:
    """llama.cpp's name of the rule by which this tokenizer splits text; None for SentencePiece."""
    if described["model"].get("byte_fallback"):
        return None
    normalizer = described.get("normalizer") or {"type": "Sequence", "normalizers": []}
    for one in normalizer.get("normalizers", [normalizer]):
        if one["type"] != "NFC":
            refuse_tokenizer("no normalizer, or NFC", one["type"])
    found = described.get("pre_tokenizer") or {}
    steps = tuple(_step(step) for step in found.get("pretokenizers", [found]))
    rule = (_WHOLE_WORDS_FIRST if described["model"].get("ignore_merges") else _RULES).get(steps)
    if rule is None:
        refuse_tokenizer(
            "text split as in GPT-2, GPT-4o, SmolLM, StarCoder, Qwen2, Llama 3, Phi-4, Tekken or Falcon",
            json.dumps(described.get("pre_tokenizer")),
        )
    if rule in _ASCII_CAPITALS:
        logger.warning("llama.cpp splits words with non-ASCII capital letters differently (%s)", rule)
    return rule


def _step(step: dict[str, Any]) -> str:
    """A splitting step as one word or its pattern; a step that llama.cpp lacks, as JSON."""
    kind, shown = step.get("type"), json.dumps(step)
    if kind == "ByteLevel" and not step["add_prefix_space"]:
        return "words" if step["use_regex"] else "bytes"
    if kind == "Digits":
        return "each digit" if step["individual_digits"] else "numbers"
    if kind == "Punctuation" and step["behavior"] == "Contiguous":
        return "punctuation"
    if kind == "Split" and (step["behavior"], step["invert"]) in (("Isolated", False), ("Removed", True)):
        return str(step["pattern"].get("Regex", shown))
    return shown


def _add_ends(writer: Any, tokenizer: Any) -> None:
    """Add the special tokens, and which of them surround a text."""
    ids = {name: getattr(tokenizer, f"{name}_token_id", None) for name in ("bos", "eos", "unk", "pad")}
    for name, index in ids.items():
        if index is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    bare = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    starts, ends = whole[:1] == [ids["bos"]], whole[-1:] == [ids["eos"]]
    if [ids["bos"]] * starts + bare + [ids["eos"]] * ends != whole:
        refuse_tokenizer("at most bos before a text and eos after it", f"{whole} for {bare}")
    writer.add_add_bos_token(starts)
    writer.add_add_eos_token(ends)


def _add_stripping(writer: Any, added: list[dict[str, Any]]) -> None:
    """Tokens that remove the spaces beside them: no key describes them, and llama.cpp needs the name phi-3."""
    before = [one["content"] for one in added if one["lstrip"]]
    behind = {one["content"] for one in added if one["rstrip"]}
    every, kept = {one["content"] for one in added}, {"<unk>", "<s>", "<|endoftext|>"}
    if behind == every - kept and {"</s>", *kept} <= every and not before:
        writer.add_name("phi-3")
    elif before or behind:
        logger.warning(
            "llama.cpp keeps the spaces beside %s, which the tokenizer removes",
            ", ".join(sorted({*before, *behind})),
        )
