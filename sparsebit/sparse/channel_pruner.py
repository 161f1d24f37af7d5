"""Whole units: channels, heads, hidden units, with everything that is coupled to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.ops import bind, op_name
from sparsebit.sparse.budget import (
    Ladder,
    Rungs,
    choose_by_layer,
    choose_for_cost,
    choose_together,
    make_ladder,
    normalize,
    steps_by_part,
    steps_by_price,
)
from sparsebit.sparse.channels import ChannelGroups, Group, find_groups, mask_tensors
from sparsebit.sparse.cost import ChoiceCost
from sparsebit.sparse.evidence import Evidence
from sparsebit.sparse.layer_sparser import LayerSparser
from sparsebit.sparse.layers import tensors_of
from sparsebit.sparse.pruner import Latency, Pruner, ReportRow
from sparsebit.sparse.schedule import Schedule
from sparsebit.sparse.scores import score_group
from sparsebit.sparse.shrink import make_plan, shrink_graph
from sparsebit.sparse.sparsers import Sparser

LATENCY_TRIES = 8


@dataclass(eq=False)
class ChannelPruner(Pruner):
    """Keeps one flag per unit of every group, by the group's name."""

    groups: ChannelGroups = field(init=False)
    cost: ChoiceCost = field(init=False)
    gates: frozenset[str] = field(init=False)
    unscored: dict[str, str] = field(default_factory=dict)  # groups a criterion could not look at, and why

    def __post_init__(self) -> None:
        if any("value" not in node.meta for node in self.gm.graph.nodes if node.op == "placeholder"):
            raise SparsebitError(
                "which channels belong together follows from shapes, and none are recorded",
                hint="give SparseModel example_inputs",
            )
        self.groups = find_groups(self.gm, keep=self.config.IGNORE)
        self.cost = ChoiceCost(self.gm, self.groups.groups)
        self.gates = _find_gates(self.gm)

    @property
    def extra_tensors(self) -> list[str]:
        """Scales of norms and the like, whose gradients a criterion may want."""
        layers = {layer.tensor for layer in self.layers}
        roles = {role for criterion in self._criteria_in_use() for role in criterion.roles}
        return [
            where.tensor
            for group in self.groups.free
            for where in group.slices
            if (where.role in roles or where.tensor in self.gates) and where.tensor not in layers
        ]

    def _criteria_in_use(self) -> list[Sparser]:
        return [self.criterion(self.sparsers[layer.name].spec.strategy) for layer in self.layers]

    def everything(self) -> dict[str, Tensor]:
        """All units stay."""
        return {group.name: torch.ones(group.units, dtype=torch.bool) for group in self.groups.free}

    def tensor_masks(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Everything that a unit owns goes with it."""
        return mask_tensors(self.groups, {name: flags.cpu() for name, flags in kept.items()})

    def rows(self, kept: Mapping[str, Tensor]) -> list[ReportRow]:
        """Units before and after; groups that cannot shrink say why."""
        found = []
        for group in self.groups:
            after = int(kept[group.name].sum()) if group.name in kept else group.units
            note = group.frozen or self.unscored.get(group.name, "")
            found.append(ReportRow(name=group.name, before=group.units, after=after, note=note))
        return found

    def choose(
        self,
        kept: Mapping[str, Tensor],
        evidence: Evidence,
        schedule: Schedule,
        progress: float,
        latency: Latency | None,
    ) -> dict[str, Tensor]:
        """New flags, by SCOPE and TARGET. Units that are gone already are the first to go."""
        settings = self.config.SPARSER
        ladders = self._ladders(kept, evidence, schedule, progress)
        if settings.TARGET == "units":
            if settings.SCOPE == "layer":
                rungs = choose_by_layer(ladders)
            else:
                ratio = schedule.scale(progress, settings.RATIO or 0.0)
                rungs = choose_together(ladders, ratio, settings.MAX_RATIO)
        else:
            rungs = self._choose_for_target(ladders, schedule.scale(progress, settings.RATIO or 0.0), latency)
        chosen = {name: flags.cpu().clone() for name, flags in kept.items()}
        return chosen | {ladder.name: ladder.kept(rungs[ladder.name]) for ladder in ladders}

    def _choose_for_target(self, ladders: list[Ladder], ratio: float, latency: Latency | None) -> Rungs:
        settings = self.config.SPARSER
        by_price = settings.SCOPE == "global"
        steps = (steps_by_price if by_price else steps_by_part)(ladders, settings.MAX_RATIO)
        costs: dict[str, Callable[[dict[str, Tensor]], float]] = {
            "params": self.cost.params,
            "macs": self.cost.macs,
        }
        if settings.TARGET in costs:
            measure = costs[settings.TARGET]
            return choose_for_cost(ladders, steps, measure, (1 - ratio) * measure({}))
        if latency is None:
            raise SparsebitError(
                "SPARSER.TARGET is latency, and nothing measures it",
                hint="pass latency=..., a function from a model to seconds, to calc_params or step",
            )
        time: Latency = latency
        goal = (1 - ratio) * time(self._shrunk({}))
        return choose_for_cost(
            ladders, steps, lambda kept: time(self._shrunk(kept)), goal, tries=LATENCY_TRIES
        )

    def _shrunk(self, kept: Mapping[str, Tensor]) -> torch.nn.Module:
        return shrink_graph(self.gm, make_plan(self.gm, self.groups, kept))

    def _ladders(
        self, kept: Mapping[str, Tensor], evidence: Evidence, schedule: Schedule, progress: float
    ) -> list[Ladder]:
        tensors = tensors_of(self.gm)
        settings, ladders = self.config.SPARSER, []
        self.unscored = {}
        for group in self.groups.free:
            handles = self._handles(group)
            asked = [handle for handle in handles if handle.asked]
            ratios = [handle.ratio for handle in asked or handles] or [settings.RATIO or 0.0]
            sparser = self.criterion(handles[0].spec.strategy if handles else settings.STRATEGY)
            scores = score_group(group, sparser, tensors, evidence, settings.AGGREGATE, self.gates)
            if scores is None:
                self.unscored[group.name] = f"{type(sparser).__name__} finds nothing to score here"
                continue
            if settings.SCOPE == "global":
                how = settings.NORMALIZE
                scores = normalize(
                    scores, ("none" if sparser.comparable else "mean") if how == "auto" else how
                )
            round_to = max((handle.spec.round_to for handle in handles), default=settings.ROUND_TO)
            ladders.append(
                make_ladder(
                    group.name,
                    scores.masked_fill(~kept[group.name].cpu(), -math.inf),
                    ratio=schedule.scale(progress, min(ratios)),
                    multiple=round_to // math.gcd(round_to, _width(group)),
                    blocks=group.blocks,
                    fixed=bool(asked),
                )
            )
        return ladders

    def _handles(self, group: Group) -> list[LayerSparser]:
        """Of the layers that make the group, in graph order."""
        made = {where.tensor for where in group.slices if where.role == "output"}
        names = dict.fromkeys(layer.name for layer in self.layers if layer.tensor in made)
        return [self.sparsers[name] for name in names]


def _find_gates(gm: CapturedModule) -> frozenset[str]:
    """Factors and shifts of batch norms: what a channel does behind one is their doing."""
    calls = [bind(gm, node) for node in gm.graph.nodes if op_name(gm, node) == "batch_norm"]
    names = [name for call in calls if call is not None for name in (call.weight_name, call.bias_name)]
    return frozenset(name for name in names if name is not None)


def _width(group: Group) -> int:
    """Channels that one unit is wide where it is made: 64 for a head, 1 for a channel."""
    made = next((where for where in group.slices if where.role == "output"), None)
    return max(1, len(made.index) // group.units) if made is not None else 1
