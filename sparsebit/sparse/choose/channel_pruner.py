"""Choose the channels, heads and hidden units to remove, with everything coupled to them."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.graph.capture import CapturedModule
from sparsebit.graph.cpu_by_default import cpu_by_default
from sparsebit.graph.ops import bind, op_name
from sparsebit.runtime.timing import measured_seconds
from sparsebit.sparse.channels import ChannelGroups, Group, find_groups, mask_tensors
from sparsebit.sparse.channels.trace import tensors_of
from sparsebit.sparse.choose.budget import (
    Ladder,
    Reached,
    Rungs,
    choose_by_layer,
    choose_for_cost,
    choose_together,
    make_ladder,
    normalize,
    steps_by_part,
    steps_by_price,
)
from sparsebit.sparse.choose.cost import ChoiceCost
from sparsebit.sparse.choose.pruner import Latency, Pruner, Ratio, ReportRow
from sparsebit.sparse.choose.scores import score_group
from sparsebit.sparse.evidence.statistic import Evidence
from sparsebit.sparse.layer_sparser import LayerSparser
from sparsebit.sparse.shrink import ShrinkPlan, make_plan, shrink_graph

logger = logging.getLogger(__name__)

LATENCY_TRIES = 8


@dataclass(eq=False)
class ChannelPruner(Pruner):
    """Keeps one flag per channel of every group, by the group's name."""

    groups: ChannelGroups = field(init=False)
    cost: ChoiceCost = field(init=False)
    gates: frozenset[str] = field(init=False)
    unmoved: dict[str, str] = field(init=False, default_factory=dict)  # what the last choice could not change
    reached: Reached | None = field(init=False, default=None)  # the result of the last choice for a target

    def __post_init__(self) -> None:
        super().__post_init__()
        self.groups = find_groups(
            self.gm,
            keep=self.config.IGNORE,
            unchanged=self.config.SKIP_TRACE_MODULES,
            prune_outputs=self._may_shrink_outputs,
        )
        self.cost = ChoiceCost(self.gm, self.groups)
        self.gates = _find_gates(self.gm)

    @property
    def extra_tensors(self) -> list[str]:
        """Scales of norms and similar tensors whose gradients a criterion may need."""
        layers = {layer.tensor for layer in self.layers}
        roles = {role for criterion in self.criteria_in_use() for role in criterion.roles}
        return [
            where.tensor
            for group in self.groups.free
            for where in group.slices
            if (where.role in roles or where.tensor in self.gates) and where.tensor not in layers
        ]

    def _may_shrink_outputs(self, layer: str) -> bool:
        """Whether the config prunes a layer that computes outputs of the model."""
        handle = self.sparsers.get(layer)
        return self.config.SPARSER.CLASSIFIER or (handle is not None and handle.asked and handle.ratio > 0)

    def penalty(self, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The sum of the training terms of all criteria that have one."""
        slices = [where for group in self.groups.free for where in group.slices]
        terms = []
        for criterion in self.criteria_in_use():
            names = dict.fromkeys(where.tensor for where in slices if where.role in criterion.roles)
            terms.append(criterion.penalty([tensors[name] for name in names]))
        found = [term for term in terms if term is not None]
        return torch.stack(found).sum() if found else None

    def everything(self) -> dict[str, Tensor]:
        """All channels stay."""
        return {
            group.name: torch.ones(group.channels, dtype=torch.bool, device="cpu")
            for group in self.groups.free
        }

    def tensor_masks(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Masks of all tensors; everything that a channel owns is removed with it."""
        flags = {name: flags.cpu() for name, flags in kept.items()}
        return mask_tensors(self.groups, flags, prune_bias=self.config.SPARSER.PRUNE_BIAS)

    def plan(self, kept: Mapping[str, Tensor]) -> ShrinkPlan:
        """The plan for a smaller model that keeps these channels."""
        return make_plan(self.gm, self.groups, kept, prune_bias=self.config.SPARSER.PRUNE_BIAS)

    def rows(self, kept: Mapping[str, Tensor]) -> list[ReportRow]:
        """Channels before and after; groups that cannot shrink say why."""
        found = []
        for group in self.groups:
            after = int(kept[group.name].sum()) if group.name in kept else group.channels
            note = group.frozen or self.unmoved.get(group.name, "")
            found.append(ReportRow(name=group.name, before=group.channels, after=after, note=note))
        return found

    @cpu_by_default
    def choose(
        self, kept: Mapping[str, Tensor], evidence: Evidence, ratio: Ratio, latency: Latency | None
    ) -> dict[str, Tensor]:
        """New flags, by SCOPE and TARGET. Channels that were removed before stay removed."""
        settings = self.config.SPARSER
        ladders, now = self._ladders(kept, evidence, ratio), ratio(settings.RATIO or 0.0)
        if settings.TARGET != "units":
            rungs = self._choose_for_target(ladders, now, latency)
        elif settings.SCOPE == "layer":
            rungs = choose_by_layer(ladders)
        else:
            rungs = choose_together(ladders, now, settings.MAX_RATIO)
        self._widen_projected(ladders, rungs)
        chosen = {name: flags.cpu().clone() for name, flags in kept.items()}
        return chosen | {ladder.name: ladder.kept(rungs[ladder.name]) for ladder in ladders}

    def _choose_for_target(self, ladders: list[Ladder], ratio: float, latency: Latency | None) -> Rungs:
        settings, target = self.config.SPARSER, self.config.SPARSER.TARGET
        order = steps_by_price if settings.SCOPE == "global" else steps_by_part

        def measure(kept: Mapping[str, Tensor]) -> float:
            if target != "latency":
                return self.cost.params(kept) if target == "params" else self.cost.macs(kept)
            assert latency is not None
            return measured_seconds(latency, shrink_graph(self.gm, self.plan(kept)))

        before = measure({})
        wanted = (1 - ratio) * before
        rungs, after = choose_for_cost(
            ladders,
            order(ladders, settings.MAX_RATIO),
            measure,
            wanted,
            tries=LATENCY_TRIES if target == "latency" else 64,
            what=f"searching for the {target}",
        )
        self.reached = Reached(target=target, before=before, after=after, wanted=wanted)
        if not self.reached.met:
            logger.warning("%s", self.reached)
        return rungs

    def _widen_projected(self, ladders: list[Ladder], rungs: Rungs) -> None:
        """Keep more hidden units in a recurrent layer than it projects them to."""
        by_name = {ladder.name: ladder for ladder in ladders}

        def left(group: Group) -> float:  # in every layer and direction
            gone = by_name[group.name].removed[rungs[group.name]] if group.name in by_name else 0
            return (group.channels - gone) / (1 if group.blocks is None else int(group.blocks.max()) + 1)

        for hidden, shown in _projections(self.gm, self.groups):
            while hidden.name in by_name and rungs[hidden.name] and left(hidden) <= left(shown):
                rungs[hidden.name] -= 1

    def _ladders(self, kept: Mapping[str, Tensor], evidence: Evidence, ratio: Ratio) -> list[Ladder]:
        tensors = tensors_of(self.gm)
        settings, ladders = self.config.SPARSER, []
        self.unmoved = {}
        self._refuse_frozen()
        for group in self.groups.free:
            handles = self._handles(group)
            asked = [handle for handle in handles if handle.asked]
            ratios = [handle.ratio for handle in asked or handles] or [settings.RATIO or 0.0]
            sparser = self.criterion(handles[0].strategy if handles else settings.STRATEGY)
            scores = score_group(group, sparser, tensors, evidence, settings.AGGREGATE, self.gates)
            if scores is None:
                self.unmoved[group.name] = f"{type(sparser).__name__} finds nothing to score in this layer"
                continue
            if settings.SCOPE == "global":
                by_criterion = "none" if sparser.comparable else "mean"
                scores = normalize(
                    scores, by_criterion if settings.NORMALIZE == "auto" else settings.NORMALIZE
                )
            round_to = max((handle.spec.round_to for handle in handles), default=settings.ROUND_TO)
            ladder = make_ladder(
                group.name,
                scores.masked_fill(~kept[group.name].cpu(), -math.inf),
                ratio=ratio(min(ratios)),
                multiple=_parts(group) * (round_to // math.gcd(round_to, _width(group))),
                blocks=group.blocks,
                fixed=bool(asked),
            )
            if len(ladder.removed) == 1:
                self.unmoved[group.name] = f"no smaller width is a multiple of ROUND_TO, {round_to}"
            ladders.append(ladder)
        return ladders

    def _refuse_frozen(self) -> None:
        """Raise an error for a ratio that was set by hand but cannot remove any of the layer's channels."""
        acts = {handle.name for group in self.groups.free for handle in self._handles(group)}
        for group in self.groups.frozen():
            for handle in self._handles(group):
                if handle.set_by_hand and handle.ratio > 0 and handle.name not in acts:
                    raise SparsebitError(
                        "this layer cannot lose channels",
                        where=f"layer {handle.name!r}",
                        got=f"set_ratio({handle.ratio}); {group.frozen}",
                        hint="give an output layer its ratio in SPARSER.SPECIFIC, or set CLASSIFIER: true"
                        if "is an output of the model" in str(group.frozen)
                        else "set its ratio to 0",
                    )

    def _handles(self, group: Group) -> list[LayerSparser]:
        """The sparsers of the layers that compute the group, in graph order."""
        made = {where.tensor for where in group.slices if where.role == "output"}
        names = dict.fromkeys(layer.name for layer in self.layers if layer.tensor in made)
        return [self.sparsers[name] for name in names]


def require_channels(pruner: Pruner) -> ChannelPruner:
    """The pruner of channels; an error if single weights are pruned."""
    if not isinstance(pruner, ChannelPruner):
        raise SparsebitError(
            "only channels have groups",
            got=f"SPARSER.TYPE {pruner.config.SPARSER.TYPE}",
            hint="set SPARSER.TYPE: structured",
        )
    return pruner


def _find_gates(gm: CapturedModule) -> frozenset[str]:
    """Factors and shifts of batch norms, which determine the magnitude of a channel after the norm."""
    calls = [bind(gm, node) for node in gm.graph.nodes if op_name(gm, node) == "batch_norm"]
    names = [name for call in calls if call is not None for name in (call.weight_name, call.bias_name)]
    return frozenset(name for name in names if name is not None)


def _projections(gm: CapturedModule, groups: ChannelGroups) -> list[tuple[Group, Group]]:
    """For recurrent layers with a projection: the group of the hidden units, and that of the projected units."""
    held = {(where.tensor, where.axis): group for group in groups for where in group.slices}
    names = [
        f"{path}.{name}"
        for path, module in gm.named_modules()
        if isinstance(module, nn.LSTM) and module.proj_size
        for name, _ in module.named_parameters()
        if name.startswith("weight_hr")
    ]
    pairs = [(held.get((name, 1)), held.get((name, 0))) for name in names]
    return [(hidden, shown) for hidden, shown in pairs if hidden is not None and shown is not None]


def _width(group: Group) -> int:
    """Positions that each channel of a group owns in a tensor: 64 for a head, 1 for a channel or a hidden unit."""
    slices = [where for where in group.slices if where.role in ("output", "input")]
    return min((len(where.index) // len(where.channel.unique()) for where in slices), default=1)


def _parts(group: Group) -> int:
    """The number of tensors its channels are divided into: layers and directions of a recurrent layer, else 1."""
    if group.blocks is None:
        return 1
    made = [len(where.channel.unique()) for where in group.slices if where.role == "output"]
    return max(1, group.channels // min(made, default=group.channels))
