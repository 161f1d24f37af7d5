"""The statistics that criteria need: from data, from recorded inputs, or from a training step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from sparsebit.batches import Call, DataError, Loss, ModelInputs, device_of, read_batches, to_device
from sparsebit.graph.effects import written_tensors
from sparsebit.graph.run import SavedState, evaluating
from sparsebit.sparse.choose.pruner import Pruner
from sparsebit.sparse.evidence.activations import Activations
from sparsebit.sparse.evidence.gradients import Gradients
from sparsebit.sparse.evidence.statistic import Evidence, Statistic
from sparsebit.sparse.layers import WeightedLayer
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
    """Everything that a pruner's criteria need.

    Args:
        graph: the graph to run.
        pruner: defines criteria and layers.
        inputs: the inputs of the model, which select the inputs from a batch.
        data: batches; without them, ``seen`` is used if activations are enough.
        loss: for gradients.
        seen: recorded calls of the model.
        training: whether to use the gradients of a training step if no data is given.
    """
    statistics, extra = pruner.statistics, pruner.extra_tensors
    sources = {one.source for one in statistics.values()}
    unlabelled = sources <= {"input", "output"}
    if not statistics:
        return {}
    if data is None and training and sources == {"gradient"}:
        return _from_training(graph, pruner.layers, statistics, extra)
    if data is None and seen and unlabelled:
        return gather(graph, pruner.layers, statistics, seen)
    if data is None:
        raise DataError(
            f"the criterion needs data: {', '.join(sorted(statistics))}",
            where=f"SPARSER.STRATEGY {pruner.config.SPARSER.STRATEGY}",
            hint="pass batches" + ("" if unlabelled else " of (inputs, targets) and loss=..."),
        )
    return gather(graph, pruner.layers, statistics, data, loss, inputs=inputs, extra=extra)


def gather(
    graph: MaskedGraph,
    layers: Sequence[WeightedLayer],
    statistics: Mapping[str, Statistic],
    data: Any,
    loss: Loss | None = None,
    *,
    inputs: ModelInputs | None = None,
    extra: Iterable[str] = (),
) -> Evidence:
    """Measure all ``statistics`` over all batches. The model's weights, buffers and mode are not changed.

    Args:
        graph: the graph to run.
        layers: the layers to measure.
        statistics: what to measure, by name.
        data: batches; see ``sparsebit.batches``.
        loss: see ``measure_loss``; without one, the output must contain a loss.
        inputs: the inputs of the model; by default those of the graph's signature.
        extra: names of further tensors whose gradients are needed, such as the scales of norms.
    """
    watched = {name: one for name, one in statistics.items() if one.source in ("input", "output")}
    differentiated = {name: one for name, one in statistics.items() if name not in watched}
    activations = Activations(graph, layers, watched)
    gradients = Gradients(graph, _names(layers, extra), differentiated)
    batches, known = 0, inputs or ModelInputs(graph.gm)
    device = device_of(graph.gm)
    # cuDNN has no backward pass for recurrent layers that are evaluating
    cudnn = torch.backends.cudnn.enabled and not any(isinstance(m, nn.RNNBase) for m in graph.gm.modules())
    parameters = dict(graph.gm.named_parameters(remove_duplicate=False))
    unchanged = SavedState(graph.gm, parameters=not parameters.keys().isdisjoint(written_tensors(graph.gm)))
    mode = evaluating(graph.gm, if_possible=True)
    with unchanged.undone(), mode, torch.backends.cudnn.flags(enabled=cudnn):
        for item in read_batches(data, None, "measuring what the criterion needs", None):
            batch = known.batch(to_device(item, device))
            batches += 1
            if watched:
                activations.update(batch)
            if differentiated:
                gradients.update(batch, loss)
    return {**gradients.finish(batches), **activations.finish(batches)}


def _from_training(
    graph: MaskedGraph,
    layers: Sequence[WeightedLayer],
    statistics: Mapping[str, Statistic],
    extra: Iterable[str],
) -> Evidence:
    """Statistics of the gradients on the parameters after a training step."""
    gradients = Gradients(graph, _names(layers, extra), statistics)
    found = {name: tensor.grad for name, tensor in gradients.tensors.items()}
    if all(gradient is None for gradient in found.values()):
        raise DataError(
            "the criterion needs gradients, and there are none",
            hint="call step() between backward() and zero_grad(), or pass data and loss",
        )
    for name in statistics:
        gradients.add(name, found)
    return gradients.finish(1)


def _names(layers: Sequence[WeightedLayer], extra: Iterable[str]) -> list[str]:
    return list(dict.fromkeys([*(layer.tensor for layer in layers), *extra]))
