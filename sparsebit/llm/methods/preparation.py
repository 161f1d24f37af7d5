"""Methods that change a block before its weights are solved, without changing what it computes."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.blocks.channel_sources import find_channel_source, move_scale
from sparsebit.llm.blocks.measure import measure_inputs, stored
from sparsebit.llm.blocks.route import Route
from sparsebit.llm.blocks.stages import Stage, find_stages
from sparsebit.llm.methods.solver import SpecOf, WeightSpec
from sparsebit.llm.weights.statistics import InputStatistics

logger = logging.getLogger(__name__)

PrepareBlock = Callable[[BlockRuns, SpecOf], None]


@runtime_checkable
class Preparation(Protocol):
    """A frozen dataclass of settings with one method."""

    def start(self, model: nn.Module, route: Route) -> PrepareBlock:
        """Return a function that changes a block's parameters: same result, easier to quantize.

        The function is called for each block in turn, with its runs on the calibration data and the spec of each
        parameter. ``model`` has no block weights yet; weights outside the blocks may be changed here. ``route`` says
        how the model calls its blocks.
        """
        ...


class ChannelScaling(ABC):
    """A preparation that scales the input channels of weights; messages use ``name``."""

    name: ClassVar[str]

    def start(self, model: nn.Module, route: Route) -> PrepareBlock:
        """Every block is prepared independently."""
        return partial(scale_channels, self)

    @abstractmethod
    def choose_scale(
        self, weights: Sequence[tuple[Tensor, WeightSpec]], statistics: InputStatistics, channels: Tensor
    ) -> Tensor:
        """The scale of each channel of the source, for weights that read one input; ``channels`` maps it to them."""


@torch.no_grad()
def scale_channels(method: ChannelScaling, runs: BlockRuns, spec_of: SpecOf) -> None:
    """Scale the input channels of every group of weights that has a source, and the source by the inverse."""
    name = method.name
    parameters = {key: parameter for key, parameter in runs.block.named_parameters() if spec_of(key)}
    probe = runs.first_sequence()
    stages = find_stages(probe, parameters)
    groups = [group for stage in stages for group in stage.groups if group.reaches_all]
    statistics = measure_inputs(runs, parameters, Stage(groups), None, sizes=True)
    scaled = 0
    for index, stage in enumerate(stages):
        for group in stage.groups:
            if group.leader not in statistics or not group.reaches_all:
                continue
            source = find_channel_source(probe, group, stages[:index])
            if source is not None:
                views = [(stored(parameters, one).float(), spec_of(one.name)) for one in group.matrices]
                weights = [(weight, spec) for weight, spec in views if spec is not None]
                scale = method.choose_scale(weights, statistics[group.leader], source.channels)
                if move_scale(probe, group, source, scale):
                    scaled += 1
                    continue
            logger.info("%s: %s is not scaled: no layer before it can absorb a scale", name, group.leader)
    if not scaled:
        raise SparsebitError(
            f"{name} cannot scale any weight of {runs.name or 'this block'}",
            expected="norms or linear layers that feed only the scaled weights",
            hint=f"leave {name} out of METHOD",
        )


def by_source(values: Tensor, channels: Tensor) -> Tensor:
    """The mean over the input channels that each channel of the source feeds.

    Example:
        >>> by_source(torch.tensor([1.0, 3.0, 5.0]), torch.tensor([0, 0, 1]))
        tensor([2., 5.])
    """
    count = int(channels.max()) + 1
    total = torch.zeros(count, device=values.device).index_add_(0, channels, values)
    size = torch.zeros_like(total).index_add_(0, channels, torch.ones_like(values))
    return total / size.clamp(min=1)
