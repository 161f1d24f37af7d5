"""Training of adapters in one process, or in several started by torchrun, which divide each batch or the blocks."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.graph.seeded import seeded
from sparsebit.llm.arguments import require_count, require_positive
from sparsebit.llm.evaluate.perplexity import require_next_token
from sparsebit.llm.language_model import LanguageModel, require_language_model
from sparsebit.llm.lora.attach import lora_layers
from sparsebit.llm.lora.pipeline import BlockPipeline
from sparsebit.llm.lora.processes import Update, WholeModel, join_processes
from sparsebit.llm.tokens import Text, as_ids, require_known, require_positions
from sparsebit.processes import failing_together, require_same


def train_lora(
    model: LanguageModel,
    data: Text,
    *,
    steps: int = 100,
    rate: float = 2e-4,
    batch: int = 4,
    length: int = 256,
    warmup: int = 10,
    seed: int = 0,
    pipeline: bool = False,
) -> list[float]:
    """Train the adapters on a text; returns the loss of each step, in nats per token.

    Under ``torchrun``, every process processes its part of each batch, and gradients are averaged. With ``pipeline``
    every process takes a part of the blocks instead, and hidden states go from one to the next, sequence by sequence.
    Either way all processes end with the adapters of one process with the same batches. The device is that of the
    model.

    Args:
        model: with adapters, see ``add_lora``.
        data: token ids, a text, or the path of a text file.
        steps: updates.
        rate: the highest learning rate; it rises for ``warmup`` steps and then falls along a cosine to zero.
        batch: sequences per update, over all processes.
        length: tokens per sequence.
        warmup: steps.
        seed: of the order of the sequences, and of dropout.
        pipeline: divide the blocks among the processes instead of the batch.
    """
    require_language_model(model)
    require_next_token(model.model, "the model")
    require_count("steps", steps)
    require_count("batch", batch)
    require_count("length", length, least=2)  # one token is predicted from those before
    require_count("warmup", warmup, least=0)
    require_positive("rate", rate)
    if not any(lora_layers(model.model)):
        raise SparsebitError("the model has no adapters", hint="add_lora(model) first")
    rank, world = join_processes(model.model)
    step_of: Update
    with failing_together():
        ids = as_ids(data, model.tokenizer)
        require_known(ids, model.model)
        require_positions(length, model.model, "length=")
        shapes = [(name, one.lora_A.shape, one.lora_B.shape) for name, one in lora_layers(model.model)]
        asked = str((steps, rate, batch, length, warmup, seed, pipeline, shapes))
        require_same([asked, ids], "the model, the text or an argument of train_lora")
        if pipeline and world > 1:
            step_of = BlockPipeline(model.model, rank, world, batch, length)
        else:
            step_of = WholeModel(model.model, rank, world, batch)
    optimizer = torch.optim.AdamW(step_of.parameters, lr=rate, weight_decay=0.0)
    losses = []
    # A stage of a pipeline cannot tell the others that it has failed: they wait for its hidden states until it ends.
    together = contextlib.nullcontext() if pipeline else failing_together()
    model.model.train()
    try:
        with together, seeded(seed, model.model):
            for step, rows in enumerate(batches(ids, steps, batch, length, seed)):
                share = rate_at(step, steps, warmup)
                for group in optimizer.param_groups:
                    group["lr"] = rate * share
                optimizer.zero_grad()
                losses.append(step_of.backward(rows))
                torch.nn.utils.clip_grads_with_norm_(step_of.parameters, 1.0, step_of.gradient_norm())
                optimizer.step()
    finally:
        model.model.eval()
    step_of.share()
    return losses


def batches(ids: Tensor, steps: int, batch: int, length: int, seed: int) -> Iterator[Tensor]:
    """Rows of ids [batch, length]; every part of the text is used once before any is repeated."""
    count = len(ids) // length
    if not count:
        raise SparsebitError(
            f"the text has {len(ids)} tokens, less than one sequence of {length}", hint="lower length="
        )
    rows = ids[: count * length].view(count, length)
    generator = torch.Generator().manual_seed(seed)
    order: list[int] = []
    for _ in range(steps):
        while len(order) < batch:
            order += torch.randperm(count, generator=generator).tolist()
        taken, order = order[:batch], order[batch:]
        yield rows[taken]


def rate_at(step: int, steps: int, warmup: int) -> float:
    """The learning rate of a step, as a fraction of the highest.

    Example:
        >>> [round(rate_at(step, 12, 2), 2) for step in (0, 1, 2, 7, 11)]
        [0.5, 1.0, 1.0, 0.5, 0.02]
    """
    if step < warmup:
        return (step + 1) / warmup
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1)))
