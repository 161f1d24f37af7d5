"""The sources of the input channels of weights, to which a scale can be moved without changing the output.

A norm's weight and the rows of an earlier matrix are such sources when scaling them scales the input channels by the
same factors, whatever lies between: a product with a gate, attention over values that several heads share, a ReLU. This
is found by experiment: the source is scaled by a different factor for each channel, and the factors that arrive at the
input say which channel came from where. If factors differ from token to token, the scale cannot be moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sparsebit.llm.blocks.calls import BlockRuns
from sparsebit.llm.blocks.stages import MatrixGroup, Stage
from sparsebit.llm.weights.uses import Matrix, first_input

TOLERANCE = 1e-3  # of outputs that should be the same, relative to what is at stake
ROUNDING = 1e-6  # of a sum in float32, relative to its size


class ChannelSource(NamedTuple):
    """Parameters whose first axis is the channels of a group's input."""

    names: tuple[str, ...]  # such as a norm's weight and bias
    transposed: bool  # channels are the last axis of the first of them
    offset: float  # 1 where the norm multiplies by 1 + weight
    channels: Tensor  # [in]: which channel of the source feeds each input channel


def find_channel_source(
    runs: BlockRuns, group: MatrixGroup, earlier: Sequence[Stage]
) -> ChannelSource | None:
    """The nearest source of a group's input that can absorb a scale; None if there is none."""
    parameters = dict(runs.block.named_parameters())
    before = _input(runs, parameters, group.leader)
    if before is None:
        return None
    for source in _candidates(parameters, before.shape[-1], earlier):
        count = len(source.channels)
        factors = torch.linspace(1.5, 2.0, count, device=before.device)
        undo = scale_source(parameters, source, factors)
        after = _input(runs, parameters, group.leader)
        undo()
        found = None if after is None else _match(before, after, factors)
        if found is not None:
            return source._replace(channels=found)
    return None


def _candidates(
    parameters: Mapping[str, Tensor], size: int, earlier: Sequence[Stage]
) -> Iterator[ChannelSource]:
    """Norms of the right size, then earlier matrices from the nearest one on, with channels not yet matched."""
    for name, parameter in parameters.items():
        if parameter.dim() == 1 and name.endswith("weight") and len(parameter) == size:
            bias = f"{name.removesuffix('weight')}bias"
            for offset in (0.0, 1.0):
                names = (name, bias) if bias in parameters else (name,)
                yield ChannelSource(names, False, offset, torch.arange(size))
    for stage in reversed(earlier):
        for group in stage.groups:
            for matrix in reversed(group.matrices):
                rows = parameters[matrix.name].shape[1 if matrix.transposed else 0]
                if matrix.expert is None and size % rows == 0:
                    bias = f"{matrix.name.removesuffix('weight')}bias"
                    names = (matrix.name, bias) if bias in parameters else (matrix.name,)
                    yield ChannelSource(names, matrix.transposed, 0.0, torch.arange(rows))


def scale_source(
    parameters: Mapping[str, Tensor], source: ChannelSource, factors: Tensor
) -> Callable[[], None]:
    """Multiply the channels of a source; returns a function that undoes it."""
    kept = {name: parameters[name].data.clone() for name in source.names}
    for name in source.names:
        data = parameters[name].data
        if data.dim() == 2:
            data *= factors if source.transposed else factors[:, None]
        else:
            offset = source.offset if name.endswith("weight") else 0.0
            data.add_(offset).mul_(factors).sub_(offset)

    def undo() -> None:
        for name, data in kept.items():
            parameters[name].data.copy_(data)

    return undo


def _input(runs: BlockRuns, parameters: Mapping[str, Tensor], leader: Matrix) -> Tensor | None:
    """The input of a matrix in the first batch, as rows."""
    found = first_input(parameters, runs.run, leader)
    return None if found is None else found.reshape(-1, found.shape[-1]).clone()


def _match(before: Tensor, after: Tensor, factors: Tensor) -> Tensor | None:
    """For each input channel, the channel of the source that scaled it; None if the factors are ambiguous."""
    energy = before.square().sum(0)
    ratio = (before * after).sum(0) / energy.clamp(min=1e-30)
    lost = (after - before * ratio).square().sum(0)
    channels = (ratio[:, None] - factors).abs().argmin(1)
    gap = float(factors[1] - factors[0]) if len(factors) > 1 else 0.5
    clear = (factors[channels] - ratio).abs() < gap / 4
    clear &= lost <= 1e-6 * after.square().sum(0) + 1e-12
    # Channels that are zero for all tokens, as after a ReLU, go with the others where those are simply in order.
    index, silent = torch.arange(len(channels), device=channels.device), energy + after.square().sum(0) == 0
    in_order = len(factors) == len(channels) and bool((channels == index)[~silent].all())
    if not bool((clear | (silent & in_order)).all()):
        return None
    return torch.where(silent, index, channels) if in_order else channels


@torch.no_grad()
def move_scale(runs: BlockRuns, group: MatrixGroup, source: ChannelSource, scale: Tensor) -> bool:
    """Multiply the group's input weights by ``scale`` and divide the source by it; undone if the output changes.

    ``scale`` has one number for each channel of the source. If anything else reads the source, the output changes about
    as much as if only the source were scaled.
    """
    parameters = dict(runs.block.named_parameters())
    wanted = runs.run()
    undo_source = scale_source(parameters, source, 1 / scale)
    at_stake = runs.run() - wanted
    kept = {name: parameters[name].data.clone() for name in {matrix.name for matrix in group.matrices}}
    for matrix in group.matrices:
        data = parameters[matrix.name].data
        data *= scale[source.channels][:, None] if matrix.transposed else scale[source.channels]
    if is_same(runs.run(), wanted, at_stake):
        return True
    undo_source()
    for name, data in kept.items():
        parameters[name].data.copy_(data)
    return False


def is_same(got: Tensor, wanted: Tensor, at_stake: Tensor) -> bool:
    """Whether outputs [..., hidden] are equal up to rounding, compared with the part of them that is ``at_stake``.

    Outputs contain the residual stream, which can be a thousand times larger than what the weights of a block add to
    it, and in a few tokens larger still. So each token is compared by itself.

    Example:
        >>> stream = torch.tensor([[1000.0, 0.0]])
        >>> is_same(stream + 0.1, stream, at_stake=torch.tensor([[0.2, 0.1]]))
        False
    """
    size = wanted.square().sum(-1).clamp(min=1e-30)
    change, stake = (((one.square().sum(-1) / size).mean().sqrt()) for one in (got - wanted, at_stake))
    return bool(change <= TOLERANCE * stake + ROUNDING)
