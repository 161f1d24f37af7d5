"""How well a model predicts text, by itself and compared with its float model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.batches import device_of
from sparsebit.errors import SparsebitError
from sparsebit.graph.run import evaluating
from sparsebit.llm.arguments import require_count
from sparsebit.llm.blocks.calls import logits_of
from sparsebit.llm.tokens import as_ids, require_known, require_positions


@dataclass(frozen=True)
class Evaluation:
    """Perplexity, and the distance to a reference if one was given.

    ``divergence`` is the mean Kullback-Leibler divergence of the next-token distributions, reference first, in nats;
    ``agreement`` how often the most likely token is the same.
    """

    perplexity: float
    tokens: int
    divergence: float | None = None
    agreement: float | None = None


@torch.no_grad()
def evaluate(
    model: Callable[[Tensor], Any],
    tokens: Tensor,
    *,
    reference: Callable[[Tensor], Any] | None = None,
    length: int = 2048,
    stride: int | None = None,
    batch: int = 4,
) -> Evaluation:
    """Perplexity over windows of ``length`` tokens, in evaluation mode.

    Windows do not overlap, as in the GPTQ paper. With a smaller ``stride`` they do, and of each window only the tokens
    count that the one before does not have: they are predicted from more tokens, and the perplexity is lower.

    Args:
        model: gives logits for token ids, as an object with ``logits`` or as a tensor.
        tokens: the text as one row of ids; an incomplete last window is left out.
        reference: the float model, or anything that returns its predictions, for divergence and agreement.
        length: of a window.
        stride: from the start of a window to that of the next one; ``length`` if it is None.
        batch: windows at a time.
    """
    require_count("length", length, least=2)  # one token is predicted from those before
    stride = length if stride is None else stride
    require_count("stride", stride)
    if stride > length:
        raise SparsebitError(
            "with a stride beyond length, windows leave tokens out",
            expected=f"at most {length}",
            got=str(stride),
        )
    require_count("batch", batch)
    ids = as_ids(tokens)
    _require_reader("the model", model, ids, length)
    if reference is not None:
        _require_reader("reference", reference, ids, length)
    if len(ids) < length:
        raise SparsebitError(
            f"the text has {len(ids)} tokens, less than one window",
            expected=f"at least {length}",
            hint="use more text, or a smaller length=",
        )
    windows = ids.unfold(0, length, stride)
    device = device_of(model) if isinstance(model, nn.Module) else torch.device("cpu")
    loss = distance = 0.0
    agreeing = total = predictions = 0
    overlap = length - stride
    # The first window has more to count than those that overlap another.
    parts = [windows[:1], *windows[1:].split(batch)] if overlap else windows.split(batch)
    with evaluating(model), evaluating(reference):
        for index, rows in enumerate(part for part in parts if len(part)):
            rows = rows.to(device)
            known = overlap if index else 0
            predicted = log_probabilities(model, rows)
            targets = rows[:, max(known, 1) :]
            scores = predicted[:, max(known, 1) - 1 : -1].gather(-1, targets[..., None])
            loss, predictions = loss - float(scores.double().sum()), predictions + targets.numel()
            total += rows[:, known:].numel()
            if reference is not None:
                wanted = log_probabilities(reference, rows)
                if wanted.shape != predicted.shape:
                    raise SparsebitError(
                        "the reference and the model have different vocabularies",
                        expected=f"{predicted.shape[-1]} tokens in its vocabulary",
                        got=str(wanted.shape[-1]),
                    )
                wanted, predicted = wanted[:, known:], predicted[:, known:]
                distance += divergence(wanted, predicted) * rows[:, known:].numel()
                agreeing += int((wanted.argmax(-1) == predicted.argmax(-1)).sum())
    perplexity = to_perplexity(loss / predictions)
    if reference is None:
        return Evaluation(perplexity, total)
    return Evaluation(perplexity, total, distance / total, agreeing / total)


def _require_reader(name: str, model: object, ids: Tensor, length: int) -> None:
    """Refuse what does not predict the next token, and token ids or windows that it cannot read."""
    if not callable(model):
        raise SparsebitError(
            f"{name}: {type(model).__name__} is not a model", expected="a module that predicts tokens"
        )
    require_next_token(model, name)
    require_known(ids, model)
    require_positions(length, model, "length=")


def require_next_token(model: object, name: str) -> None:
    """Raise for models of transformers that predict anything but the token after those that they read."""
    what = ""
    if type(model).__name__.endswith("ForMaskedLM"):
        what = "predicts masked tokens"
    elif getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        what = "is an encoder-decoder, which reads a text before it predicts it"
    if what:
        raise SparsebitError(
            f"{name}: {type(model).__name__} {what}",
            expected="a model that predicts the next token",
            hint="use its own task, or compare outputs with those of the float model",
        )


def log_probabilities(model: Callable[[Tensor], Any], rows: Tensor) -> Tensor:
    """The logarithms of the next-token distributions, [batch, length, vocabulary]."""
    return logits_of(model(rows)).float().log_softmax(-1)


def to_perplexity(loss: float) -> float:
    """The perplexity of a mean loss in nats; infinite if it is more than a float can hold."""
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


def divergence(wanted: Tensor, found: Tensor) -> float:
    """The mean Kullback-Leibler divergence of distributions given as logarithms, in nats.

    What ``wanted`` excludes costs nothing. The result is at least 0: for equal distributions, rounding could make it
    slightly negative.
    """
    terms = (wanted.exp() * (wanted - found)).masked_fill_(wanted.isneginf(), 0.0)
    return max(float(terms.sum(-1).double().mean()), 0.0)
