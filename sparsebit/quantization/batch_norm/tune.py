"""Batch norm re-estimated with quantized weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from sparsebit.errors import SparsebitError
from sparsebit.graph.exclusive import replaced
from sparsebit.processes import failing_together, is_distributed, sum_tensors
from sparsebit.quantization.batch_norm.fold import fold_quantized
from sparsebit.quantization.switches import require_calibrated, switched

if TYPE_CHECKING:
    from sparsebit.quantization.quant_model import QuantModel


@contextlib.contextmanager
def tune_batch_norm(qmodel: QuantModel) -> Iterator[None]:
    """Inside the block, forward passes measure new running statistics as plain averages; afterwards all are folded.

    Only batch norms are in training mode meanwhile, so dropout stays off. Folding multiplies a channel of the weight by
    gamma / sqrt(var + eps), and its scale by the magnitude of that: quantized values stay, or change sign with gamma.
    If the block fails, the statistics are restored. Those of the user's model are never changed. With several
    processes, each runs its own data, and all use the average over all batches.
    """
    if not qmodel.cfg.SCHEDULE.BN_TUNING:
        raise SparsebitError(
            "batch norm was not kept for tuning", hint="set SCHEDULE.BN_TUNING: true in the config"
        )
    called = {str(node.target) for node in qmodel.model.graph.nodes if node.op == "call_module"}
    modules = dict.fromkeys(qmodel.model.get_submodule(path) for path in sorted(called))
    norms = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        raise SparsebitError("the model has no batch norm left to tune")
    require_calibrated(qmodel.quantizers.values())
    before = [(norm, dict(norm._buffers)) for norm in norms]
    for norm in norms:  # the tensors are shared with the user's model
        norm._buffers.update({name: v.clone() for name, v in norm._buffers.items() if v is not None})
    qmodel.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.train()
    plain_averages, done = replaced(*((norm, "momentum", None) for norm in norms)), False
    try:
        with plain_averages, failing_together(), torch.no_grad(), switched(qmodel.quantizers.values(), True):
            yield
        _average_over_processes(norms)
        if all(norm.num_batches_tracked == 0 for norm in norms):
            raise SparsebitError(
                "no data ran through the batch norms",
                expected="some forward passes of the quantized model inside the block",
            )
        done = True
    finally:
        for norm, buffers in before:
            norm.eval()
            if not done:
                norm._buffers.update(buffers)
        qmodel.eval()
    fold_quantized(qmodel.model, exact=False)
    qmodel.tuned = True


def _average_over_processes(norms: list[_BatchNorm]) -> None:
    for norm in norms if is_distributed() else []:
        mean, var, batches = norm.running_mean, norm.running_var, norm.num_batches_tracked
        assert mean is not None and var is not None and batches is not None
        sums = [mean.double() * batches, var.double() * batches]
        sum_tensors([*sums, batches])
        for statistic, total in zip((mean, var), sums, strict=True):
            statistic.copy_(total / batches.clamp(min=1))
