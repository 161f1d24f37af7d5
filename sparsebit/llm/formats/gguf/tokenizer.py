"""A tokenizer as the keys of a GGUF file: byte-level BPE, whose rule for splitting text llama.cpp knows by name."""

from __future__ import annotations

import json
from typing import Any

from sparsebit.errors import SparsebitError

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# What llama.cpp calls a rule for splitting text: by the steps of tokenizer.json, and the pattern where there is one.
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
_RULES = {
    ("ByteLevel",): "gpt-2",
    ("Digits", "ByteLevel"): "smollm",
    ("Split", "ByteLevel", _QWEN2): "qwen2",
    ("Split", "ByteLevel", _LLAMA3): "llama-bpe",
}


def add_tokenizer(writer: Any, tokenizer: Any, size: int) -> None:
    """Add every key that llama.cpp needs, for a vocabulary of ``size`` ids."""
    if tokenizer is None:
        raise SparsebitError(
            "a gguf file needs a tokenizer, and the model has none",
            hint="pass tokenizer= to quantize, or set model.tokenizer",
        )
    backend = getattr(tokenizer, "backend_tokenizer", None)
    described = json.loads(backend.to_str()) if backend is not None else {"model": {}}
    if described["model"].get("type") != "BPE" or (rule := _rule(described)) is None:
        raise SparsebitError(
            "gguf cannot store this tokenizer",
            expected="byte-level BPE that splits text as GPT-2, SmolLM, Qwen2 or Llama 3 do",
            got=f"{described['model'].get('type', type(tokenizer).__name__)}, {described.get('pre_tokenizer')}"[
                :200
            ],
            hint="choose another format",
        )
    vocabulary, more = described["model"]["vocab"], described["added_tokens"]
    largest = max([*vocabulary.values(), *(added["id"] for added in more)], default=-1)
    if largest >= size:
        raise SparsebitError(
            "the tokenizer has tokens that the model does not know",
            expected=f"ids from 0 to {size - 1}",
            got=f"ids up to {largest}",
            hint="use this model's own tokenizer",
        )
    tokens = [f"[unused{index}]" for index in range(size)]
    kinds = [UNUSED] * size
    for text, index in vocabulary.items():
        tokens[index], kinds[index] = text, NORMAL
    for added in more:
        tokens[added["id"]] = added["content"]
        kinds[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    merges = [one if isinstance(one, str) else " ".join(one) for one in described["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    for name in ("bos", "eos", "unk", "pad"):
        if (index := getattr(tokenizer, f"{name}_token_id", None)) is not None:
            getattr(writer, f"add_{name}_token_id")(index)
    plain = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(bool(plain) and plain[0] == tokenizer.bos_token_id)
    if isinstance(getattr(tokenizer, "chat_template", None), str):
        writer.add_chat_template(tokenizer.chat_template)


def _rule(described: dict[str, Any]) -> str | None:
    """The name of the rule by which a tokenizer splits text; None where llama.cpp has no such rule."""
    found = described.get("pre_tokenizer") or {}
    steps = found.get("pretokenizers", [found])
    patterns = [step["pattern"].get("Regex", "") for step in steps if step.get("type") == "Split"]
    return _RULES.get(tuple([str(step.get("type")) for step in steps] + patterns))
