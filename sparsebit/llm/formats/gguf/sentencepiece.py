"""SentencePiece's BPE: tokenizer.json stores it as merges, llama.cpp as one score for each token.

llama.cpp joins the two neighbours whose union is the token with the best score; merges list the pairs that may be
joined. Both give the same tokens if every pair that forms a token is a merge, and the merges are in the order of the
tokens that they form. Converters from SentencePiece write merges this way; other tokenizers are refused.
"""

from __future__ import annotations

from typing import Any, NoReturn

from sparsebit.errors import SparsebitError

SPACE = "\u2581"


def piece_scores(described: dict[str, Any]) -> dict[str, float]:
    """The score of every token that merges form: the earlier, the higher.

    Example:
        >>> model = {"vocab": {"a": 0, "b": 1, "ab": 2, "aab": 3}, "merges": [["a", "b"], ["a", "ab"]]}
        >>> piece_scores({"model": model, "added_tokens": []})
        {'ab': -1.0, 'aab': -2.0}
    """
    model = described["model"]
    vocabulary: dict[str, int] = model["vocab"]
    pairs = [tuple(one.split(" ", 1)) if isinstance(one, str) else tuple(one) for one in model["merges"]]
    scores: dict[str, float] = {}
    last = ""
    for left, right in pairs:
        made = left + right
        if made != last and made in scores:
            refuse_tokenizer("merges in the order of the tokens that they form", f"{made!r} in two places")
        scores.setdefault(made, -1.0 - len(scores))
        last = made
    merges = set(pairs)
    apart = {one["content"] for one in described["added_tokens"]}
    for text in vocabulary:
        if text in apart:
            continue  # it is removed from the text before anything is joined
        for place in range(1, len(text)):
            left, right = text[:place], text[place:]
            if left in vocabulary and right in vocabulary and (left, right) not in merges:
                refuse_tokenizer(
                    "a merge for every pair of tokens that forms a token", f"none of {left!r} and {right!r}"
                )
    return scores


def adds_space(described: dict[str, Any]) -> bool:
    """Whether a space is added before every text; text that is prepared unlike SentencePiece's is refused."""
    model, vocabulary = described["model"], described["model"]["vocab"]
    missing = [byte for byte in range(256) if f"<0x{byte:02X}>" not in vocabulary]
    if missing:
        refuse_tokenizer("a token for each of 256 bytes", f"none for <0x{missing[0]:02X}>")
    normalizer = described.get("normalizer") or {"type": "Sequence", "normalizers": []}
    prepends = False
    for one in normalizer.get("normalizers", [normalizer]):
        if one == {"type": "Prepend", "prepend": SPACE}:
            prepends = True
        elif one != {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}:
            refuse_tokenizer("a normalizer that only replaces spaces", one["type"])
    step = described.get("pre_tokenizer") or {}
    if step.get("type") == "Metaspace" and step["replacement"] == SPACE:
        if step["split"] and any(SPACE in text[1:] for text in vocabulary):
            refuse_tokenizer(
                "tokens with spaces only at the start",
                "text is split at spaces, but some tokens contain spaces",
            )
        return bool(step["prepend_scheme"] != "never")
    # Spaces have been replaced already, so this splits nothing.
    if step and (step.get("type"), step.get("pattern")) != ("Split", {"String": " "}):
        refuse_tokenizer("no pre-tokenizer, or Metaspace", str(step["type"]))
    if not normalizer.get("normalizers", [normalizer]):
        refuse_tokenizer("spaces that are replaced", "text as it is")
    if model.get("ignore_merges"):
        refuse_tokenizer("ignore_merges: false", "true")
    return prepends


def refuse_tokenizer(expected: str, got: str) -> NoReturn:
    """Raise because a file cannot store this tokenizer."""
    raise SparsebitError(
        "gguf cannot store this tokenizer", expected=expected, got=got[:200], hint="choose another format"
    )
