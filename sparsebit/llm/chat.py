"""A conversation with a model: the turns so far, and the next answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from sparsebit.batches import device_of
from sparsebit.errors import SparsebitError
from sparsebit.llm.arguments import require_count
from sparsebit.llm.blocks.calls import logits_of
from sparsebit.llm.language_model import LanguageModel, require_language_model
from sparsebit.llm.tokens import most_positions, require_known

Turn = dict[str, str]
MOST_CHARACTERS = 2**22  # of a text that a template makes


class Chat:
    """Keeps the turns, and passes them to the model in its chat template, or as plain text without one."""

    def __init__(self, model: LanguageModel, *, most_tokens: int = 256) -> None:
        require_language_model(model)
        require_count("most_tokens", most_tokens)
        if model.tokenizer is None:
            raise SparsebitError("a conversation needs a tokenizer", hint="set model.tokenizer")
        if getattr(model.model, "generation_config", None) is None:
            raise SparsebitError(
                f"{type(model.model).__name__} does not generate text", expected="a transformers decoder"
            )
        self._model: Any = model.model
        self._tokenizer, self._most = model.tokenizer, most_tokens
        self._turns: list[Turn] = []

    @torch.no_grad()
    def answer(self, text: str) -> Iterator[str]:
        """Yield the model's most likely answer piece by piece.

        The question, and as much of the answer as was consumed, become part of the conversation.
        """
        turns = [*self._turns, {"role": "user", "content": text}]
        ids = self._ids(turns)  # raises if the question cannot be asked; the conversation is then unchanged
        answer: Turn = {"role": "assistant", "content": ""}
        self._turns = [*turns, answer]
        for said in self._texts(ids):
            piece, answer["content"] = said[len(answer["content"]) :], said
            yield piece

    def _texts(self, ids: list[int]) -> Iterator[str]:
        """The answer so far, after each token that completes a character."""
        ends = self._model.generation_config.eos_token_id
        stops = ends if isinstance(ends, list) else [ends]
        device, most = device_of(self._model), most_positions(self._model) or len(ids) + self._most
        given, cache, said = ids, None, list[int]()
        while len(said) < self._most and len(ids) + len(said) <= most:
            rows = torch.tensor([given], device=device)
            output = self._model(input_ids=rows, past_key_values=cache, use_cache=True)
            index, cache = int(logits_of(output)[0, -1].argmax()), output.past_key_values
            if index in stops:
                break
            said.append(index)
            given = [index]
            text = self._tokenizer.decode(said, skip_special_tokens=True)
            if not text.endswith("\ufffd"):  # the first bytes of an incomplete character
                yield text

    def _ids(self, turns: list[Turn]) -> list[int]:
        """The conversation as token ids that the model can read."""
        text = turns[-1]["content"]
        if not isinstance(text, str):
            raise SparsebitError("the prompt must be a string", got=type(text).__name__)
        if getattr(self._tokenizer, "chat_template", None):
            try:
                asked = self._tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
            except Exception as error:  # a template may raise anything
                raise SparsebitError(
                    "the chat template of the tokenizer cannot be applied",
                    got=str(error)[:200],
                    hint="set model.tokenizer.chat_template = None for plain text",
                ) from None
            if len(asked) > MOST_CHARACTERS:
                raise SparsebitError(
                    "the text from the chat template is too long", got=f"{len(asked)} characters"
                )
            found = list(self._tokenizer(asked, add_special_tokens=False)["input_ids"])
        else:
            found = list(self._tokenizer("\n".join(turn["content"] for turn in turns))["input_ids"])
        if not found:
            raise SparsebitError(
                "the prompt has no tokens", got=repr(text)[:80], hint="write at least one word"
            )
        require_known(torch.tensor(found), self._model)
        most = most_positions(self._model)
        if most is not None and len(found) > most:
            raise SparsebitError(
                f"{type(self._model).__name__} reads at most {most} tokens at once",
                got=f"a conversation of {len(found)}",
                hint="start a new Chat, or write less",
            )
        return found
