"""Fold batch norm into quantized weights, and rescale their grids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor
from torch.fx import Node

from sparsebit.graph.ops import OpCall, bind
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.passes.edit import set_tensor
from sparsebit.graph.passes.fold_batch_norm import fold_batch_norm
from sparsebit.graph.passes.remove_dead_nodes import remove_dead_nodes
from sparsebit.graph.passes.why_not_fold import tensor_of
from sparsebit.graph.run import evaluating
from sparsebit.numerics.layout import spread, to_rows
from sparsebit.quantization.modules.exchange import exchange_quantizer
from sparsebit.quantization.modules.insert import insert_call
from sparsebit.quantization.modules.quant_graph import QuantGraph
from sparsebit.quantization.modules.weights import quantized_weights, quantizer_at, weights_read
from sparsebit.quantization.quantizers import AdaRound, Quantizer
from sparsebit.quantization.quantizers.uniform import Uniform


def fold_quantized(gm: QuantGraph, *, exact: bool) -> None:
    """Fold every batch norm that can be folded, and rescale the grids of the weights.

    With ``exact`` results stay bit for bit, so a batch norm stays where folding would change them: after a weight with
    one scale for all channels, before a layer whose quantized values would change, or where a negative gamma needs a
    quantized value that does not exist (+8 in 4 bits). Otherwise, such grids are measured again or clip values. If the
    quantizer uses more than the grid (DoReFa's tanh), the weight is snapped to its grid and gets a plain quantizer.
    """
    with evaluating(gm):
        held = quantized_weights(gm)
        kept = _stuck(gm, held) if exact else set()
        for path, quantizer, norm in list(_pairs(gm, held)):
            if norm.node.name not in kept and quantizer.scale.numel() and not _scales(gm, path, quantizer):
                _bake(gm, path, quantizer)
        held = quantized_weights(gm)  # baking exchanges quantizers
        before = {path: fetch_tensor(gm, path).detach() for path in held}
        lifted = _lift_weight_quantizers(gm)
        fold_batch_norm(gm, kept)
        remove_dead_nodes(gm)
        for node, source, readers in lifted:
            insert_call(gm, source, readers, str(node.target), node.name, node.meta)
        gm.graph.lint()
        gm.recompile()
        for path, quantizer in held.items():
            after = fetch_tensor(gm, path).detach()
            if after.data_ptr() != before[path].data_ptr() and quantizer.scale.numel():
                _carry_grid(quantizer, before[path], after)


def needs_batch_norm(gm: QuantGraph) -> list[str]:
    """Weights whose quantizers normalize them, so that they need the batch norm after them."""
    pairs = _pairs(gm, quantized_weights(gm))
    return [q.name for path, q, _ in pairs if q.scale.numel() and not _scales(gm, path, q)]


def _lift_weight_quantizers(gm: QuantGraph) -> list[tuple[Node, Node, list[Node]]]:
    """Remove the quantizer nodes of weights, so that layers read the weights; returns (node, source, readers)."""
    lifted = []
    for node in list(gm.graph.nodes):
        quantizer = quantizer_at(gm, node)
        if quantizer is not None and quantizer.side == "W":
            (source,) = node.all_input_nodes
            lifted.append((node, source, list(node.users)))
            node.replace_all_uses_with(source)
            gm.graph.erase_node(node)
    return lifted[::-1]  # each is put at one place, so the last one first


def _pairs(gm: QuantGraph, held: Mapping[str, Quantizer]) -> Iterator[tuple[str, Quantizer, OpCall]]:
    """Layers with a quantized weight and a batch norm that reads their result, with that batch norm."""
    for node in gm.graph.nodes:
        norm = bind(gm, node) if node.op.startswith("call_") else None
        if norm is None or norm.spec.name != "batch_norm":
            continue
        path = _weight_path(gm, norm.activations[0])
        if path in held:
            yield path, held[path], norm


def _weight_path(gm: QuantGraph, node: Node) -> str:
    """The path of the quantized weight of a layer; empty if it has none."""
    return next((path for path, _ in weights_read(gm, node)), "")


def _stuck(gm: QuantGraph, held: Mapping[str, Quantizer]) -> set[str]:
    """Batch norms that cannot be folded without changing the result."""
    stuck = set()
    for path, quantizer, norm in _pairs(gm, held):
        gamma, weight = tensor_of(norm, "weight"), fetch_tensor(gm, path).detach()
        one_scale = quantizer.layout.kind == "tensor" and len(weight) > 1
        if one_scale or (gamma is not None and _overturns(quantizer, weight, gamma.detach())):
            stuck.add(norm.node.name)
    for node in gm.graph.nodes:
        call = bind(gm, node) if node.op.startswith("call_") else None
        if call is not None and call.spec.name == "batch_norm" and len(node.users) == 1:
            above, below = (_weight_path(gm, n) for n in (call.activations[0], next(iter(node.users))))
            if above not in held and below in held:
                stuck.add(node.name)
    return stuck


def _overturns(quantizer: Quantizer, weight: Tensor, gamma: Tensor) -> bool:
    """Whether a weight at the lowest code would exceed the highest code when its channel changes sign."""
    if not quantizer.is_symmetric or not quantizer.scale.numel() or not bool((gamma < 0).any()):
        return False
    steps, qmin = to_rows(_codes(quantizer, weight), quantizer.layout), quantizer.code.low
    if quantizer.layout.kind != "channel" or len(steps) != len(gamma):
        return bool((steps == qmin).any())
    return bool((steps[gamma < 0] == qmin).any())


@torch.no_grad()
def _scales(gm: QuantGraph, path: str, quantizer: Quantizer) -> bool:
    """Whether doubling weight and grid step doubles the quantized weight."""
    weight = fetch_tensor(gm, path).detach()
    once, scale, zero_point = quantizer.snap(weight), quantizer.scale.detach().clone(), quantizer.zero_point
    try:
        quantizer.set_grid(2 * scale, zero_point)
        return torch.equal(quantizer.snap(2 * weight), 2 * once)
    finally:
        quantizer.set_grid(scale, zero_point)


@torch.no_grad()
def _bake(gm: QuantGraph, path: str, quantizer: Quantizer) -> None:
    """Snap a weight to its grid, and give it a plain quantizer."""
    weight = fetch_tensor(gm, path)
    set_tensor(gm, path, quantizer.snap(weight).detach().clone(), weight)
    exchange_quantizer(gm, quantizer, Uniform)


@torch.no_grad()
def _carry_grid(quantizer: Quantizer, before: Tensor, after: Tensor) -> None:
    """Scale the grid of each channel like the channel, and mirror it if the sign changed."""
    old, new = (to_rows(weight.double(), quantizer.layout) for weight in (before, after))
    squares = old.square().sum(1)
    tiny = torch.finfo(squares.dtype).tiny
    factor = torch.where(squares > 0, (old * new).sum(1) / squares.clamp(min=tiny), 1.0)
    if (new - old * factor[:, None]).abs().max() > 1e-3 * new.abs().max():
        quantizer.observe_whole(after)  # folded by input channels into the next layer: another weight
        return
    qmin, qmax = quantizer.code.low, quantizer.code.high
    factor = factor.to(quantizer.scale)
    zero_point = quantizer.zero_point
    if not quantizer.is_symmetric:
        zero_point = torch.where(factor < 0, qmin + qmax - zero_point, zero_point)
    magnitude = torch.where(factor == 0, 1.0, factor.abs())  # a gamma of zero leaves a channel of zeros
    codes = _codes(quantizer, before) * spread(torch.sign(factor), before.shape, quantizer.layout)
    quantizer.set_grid(quantizer.scale * magnitude, zero_point)
    if isinstance(quantizer, AdaRound) and quantizer.up.numel():
        quantizer.up = (codes - quantizer.grid().positions(after).floor()) > 0.5
    # A weight halfway between two codes may have come down on the other side.
    tie = _codes(quantizer, after) != codes
    scale, _ = quantizer.grid().spread(after.shape)
    after.copy_(torch.where(tie, (codes * scale).to(after.dtype), after))


def _codes(quantizer: Quantizer, weight: Tensor) -> Tensor:
    """The codes of a weight, counted from the zero point."""
    return quantizer.grid().detach().steps(quantizer.prepare(weight))
