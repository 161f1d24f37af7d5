"""The handle for the pruning settings of one layer: ``smodel.model.<layer>.sparser.set_ratio(0.3)``."""

from __future__ import annotations

from torch import nn
from torch.fx import GraphModule

from sparsebit.config.pruning.sconfig import LayerSpec
from sparsebit.errors import SparsebitError
from sparsebit.graph.ops import op_name
from sparsebit.sparse.layers import WeightedLayer


class LayerSparser:
    """The pruning settings of one layer: from the config, until set by hand.

    Readable: ``name``, ``ratio``, ``strategy``, ``spec`` (all settings of the layer), ``asked`` (whether the ratio was
    set for this layer itself, by a rule or by hand) and ``set_by_hand``.
    """

    def __init__(self, name: str, spec: LayerSpec) -> None:
        self.name, self.spec = name, spec
        self.ratio, self.strategy = spec.ratio, spec.strategy
        self.asked, self.set_by_hand = spec.asked, False

    def set_ratio(self, ratio: float) -> None:
        """Set the fraction of the layer to remove, 0 for none, from the next ``calc_params`` or ``step`` on."""
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio < 1:
            raise SparsebitError(
                "the ratio is out of range",
                where=f"layer {self.name!r}",
                expected="at least 0 and less than 1",
                got=repr(ratio),
            )
        self.ratio, self.asked, self.set_by_hand = float(ratio), True, True

    def __repr__(self) -> str:
        return f"LayerSparser({self.name!r}, strategy={self.strategy!r}, ratio={self.ratio})"


def attach(gm: GraphModule, layers: list[WeightedLayer], sparsers: dict[str, LayerSparser]) -> None:
    """Make each handle reachable from its module, and each module by its flat name (``model.layer1_0_conv1``).

    These are plain attributes: neither the state dict nor the list of modules changes.
    """
    for layer in layers:
        handle = sparsers[layer.name]
        if layer.call.module is not None:
            module: nn.Module = layer.call.module
            module.__dict__["sparser"] = handle
            if not hasattr(gm, layer.flat):
                gm.__dict__[layer.flat] = module


def detach(model: nn.Module) -> None:
    """Remove the handles from a copy."""
    handled = {id(module) for module in model.modules() if module.__dict__.pop("sparser", None) is not None}
    if isinstance(model, GraphModule):  # only there have modules got flat names
        for name in [name for name, value in vars(model).items() if id(value) in handled]:
            del model.__dict__[name]


def keep_layers_before_add(
    gm: GraphModule, layers: list[WeightedLayer], sparsers: dict[str, LayerSparser]
) -> None:
    """Do not prune layers whose results reach an addition before any other layer."""
    by_node = {layer.node: sparsers[layer.name] for layer in layers}
    additions = [node for node in gm.graph.nodes if op_name(gm, node) == "add"]
    waiting, seen = [source for node in additions for source in node.all_input_nodes], set()
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        if node in by_node:
            by_node[node].set_ratio(0.0)
        else:
            waiting += node.all_input_nodes
