"""The pruner and the clock for a config."""

from __future__ import annotations

from sparsebit.batches import Call
from sparsebit.config import SConfig
from sparsebit.graph.capture import CapturedModule
from sparsebit.sparse.choose.channel_pruner import ChannelPruner
from sparsebit.sparse.choose.pruner import Latency, Pruner
from sparsebit.sparse.choose.weight_pruner import WeightPruner
from sparsebit.sparse.layer_sparser import LayerSparser


def make_pruner(
    gm: CapturedModule,
    config: SConfig,
    sparsers: dict[str, LayerSparser] | None = None,
    *,
    sizes_known: bool = True,
) -> Pruner:
    """The pruner of channels or of weights; ``sizes_known`` if the graph was recorded on the user's own inputs."""
    if config.SPARSER.TYPE != "structured":
        return WeightPruner(gm, config, sparsers or {})
    pruner = ChannelPruner(gm, config, sparsers or {})
    pruner.cost.shapes_known &= sizes_known
    return pruner


def runtime_latency(example: Call) -> Latency:
    """The default clock of ``TARGET: latency``: seconds in ONNX Runtime, on one thread."""
    from sparsebit.analysis.latency import RuntimeClock

    return RuntimeClock(
        example,
        where="SPARSER.TARGET latency",
        otherwise="pass latency=..., a function from a model to seconds",
    )
