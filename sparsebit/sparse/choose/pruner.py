"""The base of structured and weight pruning: the ratio and the criterion of each layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from sparsebit.config.engine.match import Layer
from sparsebit.config.pruning.sconfig import SConfig
from sparsebit.graph.capture import CapturedModule
from sparsebit.sparse.channels import ChannelGroups
from sparsebit.sparse.evidence.statistic import Evidence, Statistic
from sparsebit.sparse.layer_sparser import LayerSparser, attach
from sparsebit.sparse.layers import WeightedLayer, find_layers
from sparsebit.sparse.sparsers import Sparser, make_sparser

Latency = Callable[[nn.Module], float]
Ratio = Callable[[float], float]  # from the final ratio of a layer to its current ratio


@dataclass(frozen=True, kw_only=True)
class ReportRow:
    """One layer or one group of coupled layers."""

    name: str
    before: int  # channels or weights
    after: int
    note: str = ""  # why it is unchanged, if it had to stay so


@dataclass(eq=False)
class Pruner(ABC):
    """Decides what is kept: bool tensors by name, True for what is kept.

    Args:
        gm: the graph; the layers' handles are made reachable from its modules.
        config: the pruning config.
        sparsers: the settings of every layer, by name; by default those of the config.
    """

    gm: CapturedModule
    config: SConfig
    sparsers: dict[str, LayerSparser] = field(default_factory=dict)
    layers: list[WeightedLayer] = field(init=False)
    criteria: dict[str, Sparser] = field(init=False, default_factory=dict)
    groups: ChannelGroups | None = field(init=False, default=None)  # where channels are pruned

    def __post_init__(self) -> None:
        self.layers = find_layers(self.gm)
        for layer in self.layers:
            if layer.name not in self.sparsers:
                spec = self.config.layer(layer.names, layer.call.spec.name)
                self.sparsers[layer.name] = LayerSparser(layer.name, spec)
        attach(self.gm, self.layers, self.sparsers)

    def pattern_layers(self) -> list[Layer]:
        """The layers in the form that the config's patterns need."""
        return [Layer(layer.names, layer.call.spec.name) for layer in self.layers]

    def criterion(self, strategy: str) -> Sparser:
        """The criterion of this name; SPARSER.OPTIONS apply to the one that SPARSER.STRATEGY names."""
        if strategy not in self.criteria:
            own = strategy == self.config.SPARSER.STRATEGY
            self.criteria[strategy] = make_sparser(strategy, self.config.SPARSER.OPTIONS if own else {})
        return self.criteria[strategy]

    def criteria_in_use(self) -> list[Sparser]:
        """The criteria that the layers use, each once."""
        used = dict.fromkeys(self.sparsers[layer.name].strategy for layer in self.layers)
        return [self.criterion(strategy) for strategy in used]

    @property
    def statistics(self) -> dict[str, Statistic]:
        """The statistics that all criteria in use need, by name."""
        used = self.criteria_in_use()
        return {need: one.statistic(need) for one in used for need in sorted(one.needs)}

    @property
    def extra_tensors(self) -> Sequence[str]:
        """Tensors other than the layers' weights that criteria use."""
        return ()

    def penalty(self, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The training terms of the criteria in use, over the tensors that they score; None without any."""
        return None

    @abstractmethod
    def everything(self) -> dict[str, Tensor]:
        """Nothing pruned: all True."""

    @abstractmethod
    def choose(
        self, kept: Mapping[str, Tensor], evidence: Evidence, ratio: Ratio, latency: Latency | None
    ) -> dict[str, Tensor]:
        """Choose what is kept. What is removed in ``kept`` stays removed."""

    @abstractmethod
    def tensor_masks(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A mask for every parameter or buffer of which something is removed, in its shape."""

    @abstractmethod
    def rows(self, kept: Mapping[str, Tensor]) -> list[ReportRow]:
        """The result for every layer."""
