"""Batch norm re-estimated behind quantized weights, then folded without moving a single code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sparsebit.errors import SparsebitError
from sparsebit.graph.passes import fold_batch_norm, remove_dead_nodes, run_passes
from sparsebit.quantization.quantizers import Quantizer

if TYPE_CHECKING:
    from sparsebit.quantization.quant_model import QuantModel


@contextlib.contextmanager
def tune_batch_norm(qmodel: QuantModel) -> Iterator[None]:
    """Let forwards gather fresh running statistics as plain averages; fold every batch norm on leaving.

    Only batch norms are in training mode meanwhile, so dropout stays off. Folding scales a channel of the
    weight by gamma / sqrt(var + eps) and its quantization scale by the magnitude of the same: codes stay as they
    were. If the block fails, the statistics are put back.
    """
    norms = [m for m in qmodel.model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        raise SparsebitError("the model has no batch norm left to tune")
    switches = {name: q.use_quant for name, q in qmodel.quantizers.items()}
    before = [(norm, norm.momentum, {k: v.clone() for k, v in norm.named_buffers()}) for norm in norms]
    qmodel.set_quant(w_quant=True, a_quant=True)
    qmodel.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over batches
        norm.train()
    done = False
    try:
        with torch.no_grad():
            yield
        unseen = [norm for norm in norms if norm.num_batches_tracked == 0]
        if unseen:
            raise SparsebitError(
                "no data ran through the batch norms",
                expected="some forwards of the quantized model inside the block",
            )
        done = True
    finally:
        for norm, momentum, buffers in before:
            norm.momentum = momentum
            norm.eval()
            if not done:
                for name, value in buffers.items():
                    getattr(norm, name).copy_(value)
        qmodel.eval()
        for name, quantizer in qmodel.quantizers.items():
            quantizer.use_quant = switches[name]
    _fold(qmodel)


def _fold(qmodel: QuantModel) -> None:
    """Fold, and carry each weight's scale along by comparing the weight before and after."""
    gm = qmodel.model
    leaves = {name: m for name, m in gm.named_modules() if hasattr(m, "weight_quantizer")}
    weights = {name: _weight(module).detach().clone() for name, module in leaves.items()}
    run_passes(gm, (fold_batch_norm, remove_dead_nodes))
    for name, before in weights.items():
        module = gm.get_submodule(name)
        after, quantizer = _weight(module), module.weight_quantizer
        assert isinstance(quantizer, Quantizer)
        if after is _weight(leaves[name]) or torch.equal(after, before):
            continue
        factor = _factor(before, after, quantizer.rows.axis)
        quantizer.set_grid(quantizer.scale * factor.to(quantizer.scale), quantizer.zero_point)


def _factor(before: Tensor, after: Tensor, axis: int) -> Tensor:
    """By how much the magnitude of each channel grew."""
    dims = [dim for dim in range(before.dim()) if dim != axis]
    old, new = (w.double().square().sum(dims).sqrt() for w in (before, after))
    return torch.where(old > 0, new / old.clamp(min=torch.finfo(torch.float64).tiny), torch.ones_like(old))


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight
