"""A conversation with a model: what was said so far, and the next answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from sparsebit.errors import SparsebitError
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.tokens import require_known


class Chat:
    """Keeps the turns; models with a chat template get them in it, others as plain text."""

    def __init__(self, model: LanguageModel, *, most_tokens: int = 256) -> None:
        if model.tokenizer is None:
            raise SparsebitError("a conversation needs a tokenizer", hint="set model.tokenizer")
        self._model, self._tokenizer, self._most = model.model, model.tokenizer, most_tokens
        self._turns: list[dict[str, str]] = []

    @torch.no_grad()
    def answer(self, text: str) -> Iterator[str]:
        """The model's most likely answer, piece by piece as it is made; it is part of the conversation from then on."""
        self._turns.append({"role": "user", "content": text})
        if not (found := self._ids()):
            self._turns.pop()
            raise SparsebitError("the prompt has no tokens", got=repr(text)[:80], hint="write some words")
        ids = torch.tensor([found])
        require_known(ids, self._model)
        model: Any = self._model
        ends = model.generation_config.eos_token_id
        stops = set(ends if isinstance(ends, list) else [ends])
        cache, said, shown = None, [], ""
        for _ in range(self._most):
            output = model(input_ids=ids, past_key_values=cache, use_cache=True)
            cache, index = output.past_key_values, int(output.logits[0, -1].argmax())
            if index in stops:
                break
            said.append(index)
            ids = torch.tensor([[index]])
            text_now = self._tokenizer.decode(said, skip_special_tokens=True)
            if not text_now.endswith("\ufffd"):  # the first bytes of a character whose others follow
                yield text_now[len(shown) :]
                shown = text_now
        self._turns.append({"role": "assistant", "content": shown})

    def _ids(self) -> list[int]:
        if getattr(self._tokenizer, "chat_template", None):
            found = self._tokenizer.apply_chat_template(
                self._turns, add_generation_prompt=True, tokenize=False
            )
            return list(self._tokenizer(found, add_special_tokens=False)["input_ids"])
        return list(self._tokenizer("\n".join(turn["content"] for turn in self._turns))["input_ids"])
