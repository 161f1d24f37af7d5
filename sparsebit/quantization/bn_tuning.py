"""Batch norm re-estimated behind quantized weights, then folded without moving a single code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.modules.batchnorm import _BatchNorm

from sparsebit.errors import SparsebitError
from sparsebit.graph.ops import bind
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.passes import fold_batch_norm, remove_dead_nodes, run_passes
from sparsebit.quantization.granularity import spread, to_rows
from sparsebit.quantization.qmodules import show_inputs
from sparsebit.quantization.quantizers import AdaRound, Quantizer

if TYPE_CHECKING:
    from sparsebit.quantization.quant_model import QuantModel


@contextlib.contextmanager
def tune_batch_norm(qmodel: QuantModel) -> Iterator[None]:
    """Let forwards gather fresh running statistics as plain averages; fold every batch norm on leaving.

    Only batch norms are in training mode meanwhile, so dropout stays off. Folding scales a channel of the
    weight by gamma / sqrt(var + eps) and its quantization scale by the magnitude of the same: codes stay as they
    were, or change sign with gamma. If the block fails, the statistics are put back. Those of the user's own model
    are not touched either way.
    """
    called = {str(node.target) for node in qmodel.model.graph.nodes if node.op == "call_module"}
    modules = dict.fromkeys(qmodel.model.get_submodule(path) for path in sorted(called))
    norms = [m for m in modules if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        raise SparsebitError("the model has no batch norm left to tune")
    switches = {name: q.use_quant for name, q in qmodel.quantizers.items()}
    qmodel.set_quant(w_quant=True, a_quant=True)
    before = [(norm, norm.momentum, dict(norm._buffers)) for norm in norms]
    for norm in norms:  # the tensors are shared with the user's model
        norm._buffers.update({name: v.clone() for name, v in norm._buffers.items() if v is not None})
    qmodel.eval()
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average over batches
        norm.train()
    done = False
    try:
        with torch.no_grad():
            yield
        if all(norm.num_batches_tracked == 0 for norm in norms):
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
                norm._buffers.update(buffers)
        qmodel.eval()
        for name, quantizer in qmodel.quantizers.items():
            quantizer.use_quant = switches[name]
    fold_tuned(qmodel)
    qmodel.tuned = True


def fold_tuned(qmodel: QuantModel) -> None:
    """Fold every batch norm that folds, and carry the grids of the weights along."""
    gm, mode = qmodel.model, qmodel.model.training
    gm.eval()
    leaves = {name: m for name, m in gm.named_modules() if isinstance(_quantizer(m), Quantizer)}
    weights = {name: _weight(module).detach() for name, module in leaves.items()}
    run_passes(gm, (fold_batch_norm, remove_dead_nodes))
    for name, before in weights.items():
        module = gm.get_submodule(name)
        after, quantizer = _weight(module).detach(), _quantizer(module)
        if module is leaves[name] or quantizer is None:
            continue
        # Copied along with the layer, though it belongs to the graph.
        show_inputs(module, getattr(leaves[name], "input_quantizers", ()))
        if quantizer.scale.numel():
            _carry_grid(quantizer, before, after)
    gm.train(mode)


def _carry_grid(quantizer: Quantizer, before: Tensor, after: Tensor) -> None:
    """Scale the grid of each channel as the channel was, and turn it over where the sign changed."""
    old, new = (to_rows(weight.double(), quantizer.rows) for weight in (before, after))
    squares = old.square().sum(1)
    tiny = torch.finfo(squares.dtype).tiny
    factor = torch.where(squares > 0, (old * new).sum(1) / squares.clamp(min=tiny), 1.0)
    if (new - old * factor[:, None]).abs().max() > 1e-3 * new.abs().max():
        quantizer.observe_whole(
            after
        )  # folded into the layer behind it, by input channels: the codes are others
        return
    qmin, qmax = quantizer.qparams()[2:4]
    factor = factor.to(quantizer.scale)
    zero_point = quantizer.zero_point
    if not quantizer.is_symmetric:
        zero_point = torch.where(factor < 0, qmin + qmax - zero_point, zero_point)
    magnitude = torch.where(factor == 0, 1.0, factor.abs())  # a gamma of zero leaves a channel of zeros
    codes = _chosen_codes(quantizer, before)
    quantizer.set_grid(quantizer.scale * magnitude, zero_point)
    if codes is not None and isinstance(quantizer, AdaRound):
        signs = spread(torch.where(factor < 0, -1.0, 1.0), before.shape, quantizer.rows)
        below = quantizer.steps_of(after)[0].floor()
        quantizer.up = (codes * signs - below) > 0.5


def _chosen_codes(quantizer: Quantizer, weight: Tensor) -> Tensor | None:
    """The codes that were decided on, counted from the zero point, where rounding is not to the nearest."""
    if not isinstance(quantizer, AdaRound) or quantizer.up.numel() == 0:
        return None
    return quantizer.steps_of(weight)[0].floor() + quantizer.up


def _quantizer(module: nn.Module) -> Quantizer | None:
    found = getattr(module, "weight_quantizer", None)
    return found if isinstance(found, Quantizer) else None


def _weight(module: nn.Module) -> Tensor:
    weight = module.weight
    assert isinstance(weight, Tensor)
    return weight


def statistics_of(gm: GraphModule) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and standard deviation of what each layer gives behind its batch norm, by the layer's node.

    They are the batch norm's own shift and gain, and are gone once it is folded.
    """
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for node in gm.graph.nodes:
        call = bind(gm, node) if node.op.startswith("call_") else None
        if call is None or call.spec.name != "batch_norm" or not (call.weight_name and call.bias_name):
            continue
        layer = bind(gm, call.activations[0])
        if layer is None or layer.spec.family not in ("conv", "linear") or len(layer.node.users) > 1:
            continue  # it is not folded into what it reads
        mean, std = (fetch_tensor(gm, name).detach().clone() for name in (call.bias_name, call.weight_name))
        found[call.activations[0].name] = (mean, std.abs())
    return found
