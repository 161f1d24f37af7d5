"""The evidence that a pruner's criteria need: from data, from inputs seen before, or from a training step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sparsebit.batches import Call, DataError, ModelInputs
from sparsebit.sparse.choose.pruner import Pruner
from sparsebit.sparse.evidence.gather import Evidence, from_training, gather
from sparsebit.sparse.evidence.loss import Loss
from sparsebit.sparse.masking.masked_graph import MaskedGraph


def collect(
    graph: MaskedGraph,
    pruner: Pruner,
    inputs: ModelInputs,
    data: Iterable[Any] | None,
    loss: Loss | None,
    *,
    seen: Sequence[Call] | None = None,
    training: bool = False,
) -> Evidence:
    """Everything the criteria need.

    Args:
        graph: what is run.
        pruner: whose criteria and layers.
        inputs: what the model takes, which says what of a batch is input.
        data: batches; without any, ``seen`` is used where activations are enough.
        loss: for gradients.
        seen: calls of the model that were remembered.
        training: whether the gradients that a training step has left will do, where no data is given.
    """
    statistics = pruner.statistics
    if not statistics:
        return {}
    sources = {one.source for one in statistics.values()}
    if data is None and training and sources == {"gradient"}:
        names = [*(layer.tensor for layer in pruner.layers), *pruner.extra_tensors]
        return from_training(graph, list(dict.fromkeys(names)), statistics)
    unlabelled = sources <= {"input", "output"}
    if data is None and seen and unlabelled:
        return gather(graph, pruner.layers, statistics, seen)
    if data is None:
        raise DataError(
            f"the criterion needs data: {', '.join(sorted(statistics))}",
            where=f"SPARSER.STRATEGY {pruner.config.SPARSER.STRATEGY}",
            hint="pass batches" + ("" if unlabelled else " of (inputs, targets) and loss=..."),
        )
    extra = pruner.extra_tensors
    return gather(graph, pruner.layers, statistics, data, loss, inputs=inputs, extra=extra)
