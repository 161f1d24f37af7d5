"""What criteria need beside the weights, gathered from data in one pass: gradients, curvature, inputs, ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from sparsebit.batches import ModelInputs, read_batches
from sparsebit.errors import CaptureError
from sparsebit.sparse.evidence.activations import Activations, Compact
from sparsebit.sparse.evidence.batch import Loss, LossBatch
from sparsebit.sparse.evidence.gradients import Gradients, Totals
from sparsebit.sparse.layers import WeightedLayer
from sparsebit.sparse.sparsers import ACTIVATIONS, GRADIENTS, Need

Evidence = Totals  # by need, then by the name of the weight


def gather(
    gm: GraphModule,
    layers: Sequence[WeightedLayer],
    extra: Iterable[str],
    needs: frozenset[Need],
    data: Iterable[Any],
    loss: Loss | None = None,
    *,
    samples: int = 1,
    seed: int = 0,
    compact: Compact | None = None,
    inputs: ModelInputs | None = None,
) -> Evidence:
    """Everything in ``needs``, averaged over the batches. The model's weights, statistics and mode stay as they are.

    Args:
        gm: the graph.
        layers: whose inputs and outputs are looked at.
        extra: names of further tensors whose gradients are wanted, such as the scales of norms.
        needs: what to gather.
        data: batches; see ``sparsebit.batches``.
        loss: see ``LossBatch``; without one, the output must hold a loss of its own.
        samples: random signs a batch, for the diagonal of the Hessian.
        seed: of those signs.
        inputs: what the model takes; by default, what its signature says.
        compact: what to run instead of ``gm``, where something is gone already and zeros are not the same.
    """
    names = dict.fromkeys([*(layer.tensor for layer in layers), *extra])
    gradients = Gradients(gm, list(names), needs & GRADIENTS, samples, seed, compact)
    activations = Activations(gm, layers, needs & ACTIVATIONS, compact)
    count, known = 0, inputs or ModelInputs(gm)
    device = next((tensor.device for tensor in gm.parameters()), None)
    with evaluating(gm):
        for item in read_batches(data, None, "gathering what the criterion needs", None):
            batch = LossBatch(item, known, device)
            count += 1
            if needs & ACTIVATIONS:
                activations.update(batch)
            if needs & GRADIENTS:
                gradients.update(batch, loss)
    return {**gradients.finish(count), **activations.finish(count)}


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
