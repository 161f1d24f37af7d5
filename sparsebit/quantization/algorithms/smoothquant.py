"""SmoothQuant (Xiao et al., arXiv 2211.10438): move outlier channels from activations into weights, through a norm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.config.quantization.recovery import SmoothQuantSettings
from sparsebit.graph.ops import find_op
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.passes.edit import set_tensor
from sparsebit.quantization.algorithms.base import Algorithm, Job, Stage, register_algorithm
from sparsebit.quantization.algorithms.layers import QuantizedLayer, find_quantized_layers, per_channel, watch
from sparsebit.quantization.modules.weights import quantizer_at


@register_algorithm
@dataclass(frozen=True, kw_only=True)
class SmoothQuant(SmoothQuantSettings, Algorithm):
    """Divides each channel of a norm's result by a scale, and multiplies the linear layers that read it by the scale.

    ``alpha`` says how much of the difficulty moves; 0.5 splits it evenly. A norm whose result is also read by something
    else (the residual stream of a post-norm transformer) is not changed.
    """

    NAME = "smoothquant"
    stage: ClassVar[Stage] = "before"

    def apply(self, job: Job) -> None:
        """Smooth every norm that only linear layers read."""
        found = find_norms(job.gm)
        largest: dict[str, Tensor] = {}

        def see(name: str, x: Tensor) -> None:
            if not x.numel():
                return
            seen = per_channel(x, x.dim() - 1, lambda rows: rows.abs().amax(1)).double()
            largest[name] = torch.maximum(largest[name], seen) if name in largest else seen

        watch(
            job.gm,
            job.inputs,
            {node.name: (lambda x, name=node.name: see(name, x)) for node in found},  # type: ignore[misc]
            "smoothing",
            job.shown,
        )
        reached = {node: layers for node, layers in found.items() if node.name in largest}
        for node, layers in reached.items():
            _smooth(job.gm, node, layers, largest[node.name], self.alpha)
        job.notes.append(f"smoothed {len(reached)} norms")


def find_norms(gm: GraphModule) -> dict[Node, list[QuantizedLayer]]:
    """Norms with a weight that only linear layers read, and these layers.

    A norm that is written out in the model is represented by its last step, the product with its weight.
    """
    layers = {layer.node: layer for layer in find_quantized_layers(gm) if layer.call.spec.name == "linear"}
    calls: dict[str, int] = {}
    for node in gm.graph.nodes:
        if node.op == "call_module":
            calls[str(node.target)] = calls.get(str(node.target), 0) + 1
    found: dict[Node, list[QuantizedLayer]] = {}
    for node in gm.graph.nodes:
        weight = _norm_weight(gm, node, calls)
        if weight is None or weight.dim() != 1:
            continue
        readers = _readers(gm, node)
        if not readers or any(reader not in layers for reader in readers):
            continue
        if all(layers[reader].weight.shape[1] == len(weight) for reader in readers):
            found[node] = [layers[reader] for reader in readers]
    return found


def _norm_weight(gm: GraphModule, node: Node, calls: dict[str, int]) -> Tensor | None:
    spec = find_op(gm, node)
    if spec is None:
        return None
    if node.op == "call_module" and spec.channels == "norm_over_channels" and calls[str(node.target)] == 1:
        return gm.get_submodule(str(node.target))._parameters.get("weight")
    held = _product_with(node) if spec.name == "mul" and node.op == "call_function" else None
    return fetch_tensor(gm, str(held.target)) if held is not None else None


def _product_with(node: Node) -> Node | None:
    """The parameter in a product, if nothing else reads it."""
    held = [source for source in node.all_input_nodes if source.op == "get_attr"]
    return held[0] if len(held) == 1 and len(held[0].users) == 1 and len(node.all_input_nodes) == 2 else None


def _readers(gm: GraphModule, node: Node) -> list[Node]:
    readers = []
    for user in node.users:
        spec = find_op(gm, user)
        if quantizer_at(gm, user) is not None or (spec is not None and spec.elementwise and spec.moves):
            readers += _readers(gm, user)
        elif spec is None or spec.family != "size":
            readers.append(user)
    return readers


def _smooth(
    gm: GraphModule, node: Node, layers: list[QuantizedLayer], activation: Tensor, alpha: float
) -> None:
    weight = torch.stack([layer.weight.double().abs().amax(0) for layer in layers]).amax(0)
    scales = smoothing_scales(activation.to(weight.device), weight, alpha)
    for layer in layers:
        layer.set(weight=layer.weight.double() * scales)
    held = _product_with(node) if node.op == "call_function" else None
    own = [str(held.target)] if held is not None else []
    if held is None:
        parameters = gm.get_submodule(str(node.target))._parameters
        own = [f"{node.target}.{name}" for name in ("weight", "bias") if parameters.get(name) is not None]
    for path in own:
        old = fetch_tensor(gm, path)
        set_tensor(gm, path, (old.detach().double() / scales).to(old.dtype), old)


def smoothing_scales(activation: Tensor, weight: Tensor, alpha: float) -> Tensor:
    """s = max(abs(X_j)) ** alpha / max(abs(W_j)) ** (1 - alpha) for each input channel; 1 where either is zero.

    Example:
        >>> smoothing_scales(torch.tensor([16.0, 0.0]), torch.tensor([1.0, 1.0]), 0.5)
        tensor([4., 1.])
    """
    alive = (activation > 0) & (weight > 0)
    scales = activation.pow(alpha) / weight.clamp(min=torch.finfo(weight.dtype).tiny).pow(1 - alpha)
    return torch.where(alive, scales.clamp(min=1e-5), torch.ones_like(scales))
