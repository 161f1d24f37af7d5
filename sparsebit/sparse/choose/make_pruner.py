"""The pruner that a config asks for."""

from __future__ import annotations

from sparsebit.config import SConfig
from sparsebit.graph.capture import CapturedModule
from sparsebit.sparse.choose.channel_pruner import ChannelPruner
from sparsebit.sparse.choose.pruner import Pruner
from sparsebit.sparse.choose.weight_pruner import WeightPruner
from sparsebit.sparse.layer_sparser import LayerSparser, attach
from sparsebit.sparse.layers import find_layers


def make_pruner(
    gm: CapturedModule,
    config: SConfig,
    sparsers: dict[str, LayerSparser] | None = None,
    *,
    sizes_known: bool = True,
) -> Pruner:
    """Look at a graph, and make the layers' handles reachable from their modules.

    Args:
        gm: the graph.
        config: what is asked.
        sparsers: what is asked of every layer; by default what the config says.
        sizes_known: whether the graph was recorded on the user's own inputs, on whose sizes costs depend.
    """
    layers = find_layers(gm)
    if sparsers is None:
        specs = {layer.name: config.layer(layer.names, layer.call.spec.name) for layer in layers}
        sparsers = {name: LayerSparser(name, spec) for name, spec in specs.items()}
    attach(gm, layers, sparsers)
    if config.SPARSER.TYPE != "structured":
        return WeightPruner(gm, config, layers, sparsers)
    pruner = ChannelPruner(gm, config, layers, sparsers)
    pruner.cost.shapes_known &= sizes_known
    return pruner
