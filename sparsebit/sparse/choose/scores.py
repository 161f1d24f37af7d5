"""From criteria to scores: of the channels of a group, of single weights, and of blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from sparsebit.errors import PlugInError, with_article
from sparsebit.graph.lending import lending
from sparsebit.sparse.channels.group import Group, Slice
from sparsebit.sparse.choose.masks import MatrixBlocks
from sparsebit.sparse.evidence.statistic import Evidence, wide
from sparsebit.sparse.sparsers import Rows, Sparser


def score_group(
    group: Group,
    sparser: Sparser,
    tensors: Mapping[str, Tensor],
    evidence: Evidence,
    aggregate: str,
    gates: Collection[str] = (),
) -> Tensor | None:
    """One score per channel, [channels] in float64 on the CPU; None if the criterion finds nothing to score.

    Each slice of the criterion's role is scored separately, and ``aggregate`` combines the scores of coupled layers.
    "auto" is their mean, or, for a criterion that is ``joint``, one score of everything that a channel owns together.
    ``gates`` are factors and shifts of batch norms, which represent everything before them in a joint score.
    """
    slices = _slices_for(group, sparser, tensors, evidence, gates)
    if not slices:
        return None
    if aggregate == "auto" and sparser.joint:
        return _score_jointly(group, sparser, slices, tensors, evidence)
    aggregate = "mean" if aggregate == "auto" else aggregate
    scores = torch.zeros(len(slices), group.channels, dtype=torch.float64)
    there = torch.zeros(len(slices), group.channels, dtype=torch.bool)
    for row, where in enumerate(slices):
        channels, rows = channel_rows(where, sparser, tensors, evidence)
        scores[row, channels] = score_rows(sparser, rows).to("cpu", torch.float64)
        there[row, channels] = True
    return aggregate_scores(scores, there, aggregate)


def score_rows(sparser: Sparser, rows: Rows) -> Tensor:
    """The scores of a criterion, [R] in floating point; an error if it returned anything else than one for each row."""
    with lending(f"the criterion {type(sparser).__name__} failed on {rows.name!r}", [sparser], rows.weight):
        found: Any = sparser.score(rows)
    if not isinstance(found, Tensor) or found.is_complex() or found.numel() != len(rows.weight):
        shape = f" {list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else ""
        raise PlugInError(
            f"the criterion {type(sparser).__name__} did not return one score for each row",
            where=rows.name,
            expected=f"a tensor [{len(rows.weight)}] of real numbers",
            got=f"{with_article(type(found).__name__)}{shape}",
        )
    scores: Tensor = found.detach().reshape(-1)
    return scores if scores.is_floating_point() else scores.to(torch.float64)


def aggregate_scores(scores: Tensor, there: Tensor, how: str) -> Tensor:
    """One score per channel from those of several tensors, [tensors, channels]; ``there`` says which hold the channel.

    Example:
        >>> both = torch.tensor([[1.0, 2.0], [3.0, 0.0]]), torch.tensor([[True, True], [True, False]])
        >>> [aggregate_scores(*both, how).tolist() for how in ("mean", "max", "sum", "first")]
        [[2.0, 2.0], [3.0, 2.0], [4.0, 2.0], [1.0, 2.0]]
    """
    found = scores.masked_fill(~there, 0)
    if how == "sum":
        return found.sum(0)
    if how == "mean":
        return found.sum(0) / there.sum(0).clamp(min=1)
    if how == "max":
        highest = scores.masked_fill(~there, -torch.inf).amax(0)
        return torch.where(there.any(0), highest, torch.zeros_like(highest))
    assert how == "first", how
    return found.gather(0, there.to(torch.int8).argmax(0, keepdim=True))[0]


def _score_jointly(
    group: Group,
    sparser: Sparser,
    slices: list[Slice],
    tensors: Mapping[str, Tensor],
    evidence: Evidence,
) -> Tensor:
    """Everything that a channel owns in one row, with zeros for what only others own."""
    parts: dict[str, list[Tensor]] = {}
    for where in slices:
        channels, rows = channel_rows(where, sparser, tensors, evidence)
        for name, part in {_WEIGHT: rows.weight, **rows.evidence}.items():
            full = part.new_zeros(group.channels, part.shape[1])
            full[channels.to(part.device)] = part
            parts.setdefault(name, []).append(full)
    joined = {name: torch.cat(found, 1) for name, found in parts.items()}
    both = Rows(name=slices[0].tensor, weight=joined.pop(_WEIGHT), evidence=joined)
    return score_rows(sparser, both).to("cpu", torch.float64)


def _slices_for(
    group: Group,
    sparser: Sparser,
    tensors: Mapping[str, Tensor],
    evidence: Evidence,
    gates: Collection[str] = (),
) -> list[Slice]:
    found = [where for where in group.slices if where.role in sparser.roles]
    if sparser.joint and (gated := [where for where in group.slices if where.tensor in gates]):
        found = gated
    elif sparser.roles == ("output",):
        matrices = [where for where in found if tensors[where.tensor].ndim > 1]
        found = matrices or found
    return [where for where in found if all(where.tensor in evidence.get(need, {}) for need in sparser.needs)]


def channel_rows(
    where: Slice, sparser: Sparser, tensors: Mapping[str, Tensor], evidence: Evidence
) -> tuple[Tensor, Rows]:
    """The channels in a slice (int64 [R]) and their values for the criterion, one row per channel.

    A channel may own several positions; they are side by side in its row, padded with zeros if others own more.
    """
    channels, spot = where.channel.unique(return_inverse=True)
    order = torch.argsort(spot, stable=True)
    counts = torch.bincount(spot, minlength=len(channels))
    widest = int(counts.max())
    starts = counts.cumsum(0) - counts
    place = spot[order] * widest + torch.arange(len(order)) - starts.repeat_interleave(counts)

    def lay_out(tensor: Tensor) -> Tensor:
        taken = where.take(tensor.detach()).to(wide(tensor))  # [n, E]
        laid = taken.new_zeros(len(channels) * widest, taken.shape[1])
        laid[place.to(taken.device)] = taken[order.to(taken.device)]
        return laid.reshape(len(channels), -1)

    found: dict[str, Tensor] = {}
    for need in sparser.needs:
        numbers, per = evidence[need][where.tensor], sparser.statistic(need).per
        if per == "output":  # one number for each position, not for each element
            ranks = numbers[where.index.to(numbers.device)]
            total = ranks.new_zeros(len(channels)).index_add_(0, spot.to(ranks.device), ranks)
            found[need] = total / counts.to(ranks.device)
        else:
            found[need] = numbers if per == "layer" else lay_out(numbers)
    return channels, Rows(name=where.tensor, weight=lay_out(tensors[where.tensor]), evidence=found)


def _by_row(
    name: str, sparser: Sparser, evidence: Evidence, lay_out: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    found = {need: (evidence[need][name], sparser.statistic(need).per) for need in sparser.needs}
    return {need: one if per == "layer" else lay_out(one) for need, (one, per) in found.items()}


def score_weights(name: str, weight: Tensor, sparser: Sparser, evidence: Evidence) -> Tensor:
    """One score for every single weight, in the shape of the tensor."""
    plain = weight.detach().to(wide(weight)).reshape(-1, 1)
    found = _by_row(name, sparser, evidence, lambda one: one.reshape(-1, 1))
    return score_rows(sparser, Rows(name=name, weight=plain, evidence=found)).reshape(weight.shape)


def score_blocks(
    name: str, weight: Tensor, blocks: MatrixBlocks, sparser: Sparser, evidence: Evidence
) -> Tensor:
    """One score for every block, [blocks]; an incomplete one at an edge is scaled up to a full one."""
    found = _by_row(name, sparser, evidence, blocks.to_rows)
    rows = Rows(name=name, weight=blocks.to_rows(weight.detach().to(wide(weight))), evidence=found)
    sizes = blocks.sizes().to(rows.weight.device)
    return score_rows(sparser, rows) * (rows.weight.shape[1] / sizes)


_WEIGHT = ""  # beside the names of statistics, none of which is empty
