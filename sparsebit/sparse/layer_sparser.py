"""The handle by which one layer's share of the pruning is set: ``smodel.model.<layer>.sparser.set_ratio(0.3)``."""

from __future__ import annotations

from torch import nn
from torch.fx import GraphModule

from sparsebit.config.pruning.sconfig import LayerSpec
from sparsebit.errors import SparsebitError
from sparsebit.sparse.layers import WeightedLayer


class LayerSparser:
    """What is asked of one layer: by the config, until it is set by hand."""

    def __init__(self, name: str, spec: LayerSpec) -> None:
        self.name, self.spec = name, spec
        self.ratio = spec.ratio
        self.asked = spec.asked  # whether for this layer itself, by a rule or by hand

    def set_ratio(self, ratio: float) -> None:
        """Let this part of the layer go; 0 leaves it whole. Counts from the next ``calc_params`` or ``step`` on."""
        if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio < 1:
            raise SparsebitError(
                "a ratio is a part of the layer",
                where=f"layer {self.name!r}",
                expected="a number from 0 up to but not including 1",
                got=repr(ratio),
            )
        self.ratio, self.asked = float(ratio), True

    def __repr__(self) -> str:
        return f"LayerSparser({self.name!r}, strategy={self.spec.strategy!r}, ratio={self.ratio})"


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
    """Take the handles off a copy again."""
    handled = [module for module in model.modules() if module.__dict__.pop("sparser", None) is not None]
    if isinstance(model, GraphModule):  # only there have modules got flat names
        for name in [name for name, value in vars(model).items() if any(value is one for one in handled)]:
            del model.__dict__[name]
