"""The check of an exported file: an unmodified engine loads it and is compared with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.batches import device_of
from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import outputs_of, run_model
from sparsebit.llm.engines.engine import Engine, missing_modules
from sparsebit.llm.engines.rounding import Rounding, rounded_inputs
from sparsebit.llm.evaluate.perplexity import divergence, log_probabilities, to_perplexity
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.packed.linear import PackedLinear

# The engine rounds different values from torch, so its divergence is another sample of the same size.
ROUNDING_SPREAD = 4.0
# Where two experts are nearly tied, the last bits of the rounding decide, and the outputs jump. This many nudged
# roundings show it: in small Mixtral models at 8 bits, a fifth of them or more jump if those of llama.cpp do.
NUDGED = 16
# Texts on which tokenizers differ: digits, runs of spaces, line ends, contractions, non-ASCII letters and signs.
TEXTS = (
    "The rain in the mountains fell for three days, and on the fourth the river had taken the bridge.",
    "It's 10% off: don't pay 1234.50 (or 98765), they'll say!!",
    "def area(x_1):\n    return [3.14159 * x_1**2]\n\n\t# two  spaces,   three",
    "Une brasserie près d'ici a coûté 20 € — naïve façade",
    "東京の天気は晴れ, Ωμέγα и привет 🙂",
)


@dataclass(frozen=True, kw_only=True)
class ExportReport:
    """The written file, and how the engine read it.

    ``ok`` is true if no problem was found, ``proven`` if an engine has also loaded the file.
    """

    path: str
    format: str
    nbytes: int
    engine: str = ""
    not_run: str = ""  # why no engine has loaded the file
    failure: str = ""  # the engine's message if it could not load or run it
    wrong_weights: tuple[str, ...] = ()  # matrices that the engine reads differently
    weights: int = 0  # matrices that were compared
    wrong_texts: tuple[str, ...] = ()  # that the engine tokenizes differently
    texts: int = 0  # texts that were compared
    divergence: float | None = None  # mean, of the next-token distributions, in nats
    rounded_layers: int = 0  # layers before which the engine rounds activations to 8 bits
    rounding_cost: float = 0.0  # the divergence caused by the same rounding in torch
    # The largest one of nudged roundings, measured if rounding_cost does not explain the divergence.
    tie_cost: float = 0.0
    tolerance: float = 0.0  # the divergence that the engine's arithmetic explains
    # How often the most likely token is the same; None for a model without a head.
    agreement: float | None = None
    gap: float = 0.0  # if they differ: the largest gap in torch between the two tokens, in nats
    perplexity: float | None = None  # of the compared tokens in the engine; None for a model without a head
    perplexity_in_torch: float | None = None
    predicted: int = 0  # tokens that these perplexities are of
    cut_to: int = 0  # the tokens compared, if the file's context is too short for all that were given

    @property
    def proven(self) -> bool:
        """Whether an engine loaded the file and agrees with the model."""
        return not self.not_run and self.ok

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        close = self.divergence is None or self.divergence <= self.tolerance
        return not self.wrong_weights and not self.wrong_texts and not self.failure and close

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.format}, {self.nbytes / 1e6:.1f} MB"]
        if self.not_run:
            return "\n".join([*lines, f"  not checked in an engine: {self.not_run}"])
        if self.failure:
            return "\n".join([*lines, f"  {self.engine} cannot run it: {self.failure}"])
        if self.wrong_weights:
            more = f" and {len(self.wrong_weights) - 1} more" if len(self.wrong_weights) > 1 else ""
            lines.append(f"  {self.engine} reads {self.wrong_weights[0]}{more} differently")
        else:
            lines.append(f"  {self.engine} reads all {self.weights} quantized weights bit for bit")
        if self.wrong_texts:
            lines.append(
                f"  it splits {len(self.wrong_texts)} of {self.texts} texts into tokens that differ from "
                f"the tokenizer's, such as {self.wrong_texts[0]!r}"
            )
        elif self.texts:
            lines.append(f"  it splits {self.texts} texts into the same tokens as the tokenizer")
        if self.cut_to:
            lines.append(f"  compared on the first {self.cut_to} tokens, which fill the context of the file")
        if self.divergence is not None:
            fine = self.divergence <= self.tolerance
            verdict = "" if fine else f", more than its arithmetic explains ({self.tolerance:.2g})"
            if self.agreement is None:
                lines.append(
                    f"  its outputs, treated as distributions, differ by {self.divergence:.2g} nats{verdict}"
                )
                return "\n".join(lines)
            near = f" (the others are {self.gap:.2g} nats apart in torch at most)" if self.gap else ""
            lines.append(
                f"  its next-token distributions differ by {self.divergence:.2g} nats{verdict}; "
                f"the most likely token agrees at {self.agreement:.1%} of the positions{near}"
            )
        if self.perplexity is not None:
            lines.append(
                f"  perplexity of {self.predicted} tokens: {self.perplexity:.5g}, "
                f"in torch {self.perplexity_in_torch:.5g}"
            )
        if self.rounded_layers:
            lines.append(
                f"  it rounds activations to 8 bits before {self.rounded_layers} layers, "
                f"which costs {self.rounding_cost:.2g} nats in torch"
            )
            if self.tie_cost > self.rounding_cost:
                lines.append(
                    f"  if their last bits differ, it costs up to {self.tie_cost:.2g} nats in torch, "
                    "for example where two experts are nearly tied and the other one is chosen"
                )
        return "\n".join(lines)


@torch.no_grad()
def prove(model: LanguageModel, path: Path, format_name: str, engine: Engine, ids: Tensor) -> ExportReport:
    """Load an exported file in its engine, if installed, and compare weights and predictions."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    if missing := missing_modules(engine):
        reason = f"{engine.name} needs {', '.join(missing)}, not installed"
        return ExportReport(path=str(path), format=format_name, nbytes=size, not_run=reason)
    try:
        opened = engine.open(path)
        given, ids = len(ids), ids[: opened.longest]
        found = opened.log_probabilities(ids).double()  # before weights, which loaders may unpack only then
        wrong = [
            name
            for name, held in model.weights.items()
            if not torch.equal(opened.weight(name), held.numbers().cpu())
        ]
        texts, wrong_texts = _compare_tokens(model, engine, path)
        rounded = {
            layer: rounding
            for name in model.weights
            if (rounding := opened.rounding(name)) is not None and (layer := _multiplying_layer(model, name))
        }
    except Exception as error:  # engines may raise anything, and then the file is not proven
        ours = error.got or error.message if isinstance(error, SparsebitError) else ""
        failure = (ours or f"{type(error).__name__}: {error}")[:300]
        return ExportReport(
            path=str(path), format=format_name, nbytes=size, engine=engine.name, failure=failure
        )
    rows = ids[None].to(device_of(model.model))
    output = run_model(model.model, rows)
    wanted = outputs_of(output)[0].double().log_softmax(-1).cpu()
    differs = divergence(wanted[-len(found) :], found)
    cost, tie_cost = _rounding_costs(model.model, rows, wanted, rounded, differs - engine.tolerance)
    wanted = wanted[-len(found) :]
    first, other = wanted.argmax(-1, keepdim=True), found.argmax(-1, keepdim=True)
    predicts = not hasattr(output, "last_hidden_state")
    # An encoder-decoder has read the tokens that it predicts.
    is_decoder = predicts and not getattr(model.model.config, "is_encoder_decoder", False)
    next_ids = ids[len(ids) - len(found) + 1 :] if is_decoder else ids[:0]
    return ExportReport(
        path=str(path),
        format=format_name,
        nbytes=size,
        engine=engine.name,
        wrong_weights=tuple(wrong),
        weights=len(model.weights),
        wrong_texts=wrong_texts,
        texts=texts,
        divergence=differs,
        rounded_layers=len(rounded),
        rounding_cost=cost,
        tie_cost=tie_cost,
        tolerance=engine.tolerance + ROUNDING_SPREAD * max(cost, tie_cost),
        agreement=float((first == other).double().mean()) if predicts else None,
        gap=float((wanted.gather(-1, first) - wanted.gather(-1, other)).max()),
        perplexity=_perplexity(found, next_ids),
        perplexity_in_torch=_perplexity(wanted, next_ids),
        predicted=len(next_ids),
        cut_to=len(ids) if len(ids) < given else 0,
    )


def _perplexity(predicted: Tensor, next_ids: Tensor) -> float | None:
    """The perplexity of the tokens after the first of these distributions [tokens, vocabulary]."""
    if not len(next_ids):
        return None
    found = predicted[: len(next_ids)].gather(-1, next_ids[:, None].to(predicted.device))
    return to_perplexity(-float(found.mean()))


def _rounding_costs(
    model: nn.Module, rows: Tensor, wanted: Tensor, layers: Mapping[str, Rounding], differs: float
) -> tuple[float, float]:
    """The divergence caused by rounding in torch, and the largest one of nudged roundings if it is needed."""
    if not layers:
        return 0.0, 0.0

    def cost(nudge: torch.Generator | None) -> float:
        with rounded_inputs(model, layers, nudge):
            return divergence(wanted, log_probabilities(model, rows)[0].double().cpu())

    plain = cost(None)
    if differs <= ROUNDING_SPREAD * plain:
        return plain, 0.0
    return plain, max(cost(torch.Generator().manual_seed(seed)) for seed in range(NUDGED))


def _multiplying_layer(model: LanguageModel, name: str) -> str:
    """The layer that multiplies its input by a weight; of stacked experts, the module that holds them; or nothing."""
    layer = name.partition("[")[0].rpartition(".")[0]
    return layer if "[" in name or isinstance(model.model.get_submodule(layer), PackedLinear) else ""


def _compare_tokens(model: LanguageModel, engine: Engine, path: Path) -> tuple[int, tuple[str, ...]]:
    """The number of texts compared, and those that the engine tokenizes differently."""
    if engine.token_ids is None or model.tokenizer is None:
        return 0, ()
    wanted = {text: list(model.tokenizer(text)["input_ids"]) for text in TEXTS}
    # A vocabulary may lack tokens for some letters; such texts cannot be compared.
    known = [text for text, ids in wanted.items() if _decode(model.tokenizer, ids) == text.strip()]
    found = engine.token_ids(path, known) if known else []
    return len(known), tuple(text for text, ids in zip(known, found, strict=True) if ids != wanted[text])


def _decode(tokenizer: Any, ids: list[int]) -> str:
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text.strip()
