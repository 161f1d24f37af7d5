"""What criteria need beside the weights, gathered from data in one pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sparsebit.batches import DataError, ModelInputs, read_batches, to_device
from sparsebit.errors import CaptureError
from sparsebit.sparse.evidence.activations import Activations
from sparsebit.sparse.evidence.gradients import Gradients
from sparsebit.sparse.evidence.loss import Loss
from sparsebit.sparse.evidence.statistic import Statistic
from sparsebit.sparse.layers import WeightedLayer
from sparsebit.sparse.masking.masked_graph import MaskedGraph

Evidence = Mapping[str, Mapping[str, Tensor]]  # by statistic, then by the name of the weight


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
    """Every one of ``statistics``, over all the batches. The model's weights, statistics and mode stay as they are.

    Args:
        graph: what is run.
        layers: whose inputs, outputs and weights are looked at.
        statistics: what to gather, by name.
        data: batches; see ``sparsebit.batches``.
        loss: see ``measure_loss``; without one, the output must hold a loss of its own.
        inputs: what the model takes; by default, what the graph's signature says.
        extra: names of further tensors whose gradients are wanted, such as the scales of norms.
    """
    names = list(dict.fromkeys([*(layer.tensor for layer in layers), *extra]))
    watched = {name: one for name, one in statistics.items() if one.source in ("input", "output")}
    differentiated = {name: one for name, one in statistics.items() if name not in watched}
    activations = Activations(graph, layers, watched)
    gradients = Gradients(graph, names, differentiated)
    batches, known = 0, inputs or ModelInputs(graph.gm)
    device = next((tensor.device for tensor in graph.gm.parameters()), torch.device("cpu"))
    with evaluating(graph.gm):
        for item in read_batches(data, None, "gathering what the criterion needs", None):
            batch = known.batch(to_device(item, device))
            batches += 1
            if watched:
                activations.update(batch)
            if differentiated:
                gradients.update(batch, loss)
    return {**gradients.finish(batches), **activations.finish(batches)}


def from_training(graph: MaskedGraph, names: Sequence[str], statistics: Mapping[str, Statistic]) -> Evidence:
    """Statistics of the gradients that a training step has left on the parameters."""
    gradients = Gradients(graph, names, statistics)
    found = {name: tensor.grad for name, tensor in gradients.tensors.items()}
    if all(gradient is None for gradient in found.values()):
        raise DataError(
            "the criterion needs gradients, and there are none",
            hint="call step() between backward() and zero_grad(), or pass data and loss",
        )
    for name in statistics:
        for tensor, gradient in found.items():
            gradients.add(name, tensor, gradient)
    return gradients.finish(1)


@contextlib.contextmanager
def evaluating(gm: GraphModule) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in gm.modules()]
    # where a model cannot switch modes, its own is the only one it was recorded in
    with contextlib.suppress(CaptureError):
        gm.eval()
    recurrent = any(isinstance(module, nn.RNNBase) for module in gm.modules())
    try:
        # cuDNN has no backward pass for recurrent layers that are evaluating
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled and not recurrent):
            yield
    finally:
        for module, training in modes:
            module.training = training
