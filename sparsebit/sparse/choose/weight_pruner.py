"""Zeros inside weights: single ones, N of every M, and blocks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from sparsebit.graph.cpu_by_default import cpu_by_default
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.sparse.choose.budget import normalize
from sparsebit.sparse.choose.masks import (
    MatrixBlocks,
    count_removed,
    keep_highest,
    keep_highest_together,
    keep_n_of_m,
)
from sparsebit.sparse.choose.pruner import Latency, Pruner, Ratio, ReportRow
from sparsebit.sparse.choose.scores import score_blocks, score_weights
from sparsebit.sparse.evidence.statistic import Evidence
from sparsebit.sparse.layers import WeightedLayer, layers_without_parameter, makes_outputs


class WeightPruner(Pruner):
    """Keeps a mask of every weight, by the weight's name."""

    def everything(self) -> dict[str, Tensor]:
        """All weights stay."""
        weights = {layer.tensor: fetch_tensor(self.gm, layer.tensor) for layer in self.layers}
        return {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}

    def why_unchanged(self, layer: WeightedLayer) -> str | None:
        """Why a layer is not pruned, or None."""
        handle = self.sparsers[layer.name]
        patterns = (*self.config.SKIP_TRACE_MODULES, *self.config.IGNORE)
        pattern = next((one for one in patterns if any(fnmatchcase(name, one) for name in layer.names)), None)
        if pattern is not None:
            return f"kept by the pattern {pattern!r}"
        if handle.asked:
            return None if handle.ratio else "its ratio is 0"
        if layer.flat in makes_outputs(self.gm) and not self.config.SPARSER.CLASSIFIER:
            return "it computes the outputs; set SPARSER.CLASSIFIER: true to prune it as well"
        return None

    @cpu_by_default
    def choose(
        self, kept: Mapping[str, Tensor], evidence: Evidence, ratio: Ratio, latency: Latency | None
    ) -> dict[str, Tensor]:
        """New masks. Zeros are removed first, so a removed weight stays removed."""
        masks, waiting = dict(kept), dict[str, Tensor]()
        settings = self.config.SPARSER
        pruned = [layer for layer in self.layers if self.why_unchanged(layer) is None]
        for layer in pruned:
            handle = self.sparsers[layer.name]
            scores = self._scores(layer, kept[layer.tensor], evidence)
            if settings.TYPE == "nm":
                masks[layer.tensor] = keep_n_of_m(scores, *handle.spec.nm, layer.axes[1])
            elif settings.SCOPE == "global" and not handle.asked:
                waiting[layer.tensor] = normalize(scores, self._normalization)
            else:
                chosen = keep_highest(scores, count_removed(scores.numel(), ratio(handle.ratio)))
                masks[layer.tensor] = self._spread(layer, chosen)
        total = sum(scores.numel() for scores in waiting.values())
        together = keep_highest_together(waiting, count_removed(total, ratio(settings.RATIO or 0.0)))
        spread = {
            layer.tensor: self._spread(layer, together[layer.tensor])
            for layer in pruned
            if layer.tensor in waiting
        }
        return masks | spread

    def tensor_masks(self, kept: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The masks themselves."""
        return {name: mask for name, mask in kept.items() if not bool(mask.all())}

    def rows(self, kept: Mapping[str, Tensor]) -> list[ReportRow]:
        """Weights before and after."""
        computed = [
            ReportRow(name=name, before=count, after=count, note=reason)
            for name, count, reason in layers_without_parameter(self.gm)
        ]
        return computed + [
            ReportRow(
                name=layer.name if layer.tensor.endswith(".weight") else layer.tensor,
                before=kept[layer.tensor].numel(),
                after=int(kept[layer.tensor].sum()),
                note=self.why_unchanged(layer) or "",
            )
            for layer in self.layers
        ]

    def _blocks(self, layer: WeightedLayer) -> MatrixBlocks:
        shape = tuple(fetch_tensor(self.gm, layer.tensor).shape)
        return MatrixBlocks(shape, layer.axes, self.sparsers[layer.name].spec.block)

    def _scores(self, layer: WeightedLayer, kept: Tensor, evidence: Evidence) -> Tensor:
        """The scores of every weight or block; the lowest possible if everything is already zero."""
        weight = fetch_tensor(self.gm, layer.tensor)
        sparser = self.criterion(self.sparsers[layer.name].strategy)
        if self.config.SPARSER.TYPE != "block":
            scores = score_weights(layer.tensor, weight, sparser, evidence)
            return scores.masked_fill(~kept.to(scores.device), -math.inf)
        blocks = self._blocks(layer)
        scores = score_blocks(layer.tensor, weight, blocks, sparser, evidence)
        gone = blocks.to_rows(kept.float()).sum(1) == 0
        return scores.masked_fill(gone.to(scores.device), -math.inf)

    @property
    def _normalization(self) -> str:
        """Magnitudes of single weights are compared across layers directly; those of blocks are normalized."""
        by_type = "mean" if self.config.SPARSER.TYPE == "block" else "none"
        return by_type if self.config.SPARSER.NORMALIZE == "auto" else self.config.SPARSER.NORMALIZE

    def _spread(self, layer: WeightedLayer, chosen: Tensor) -> Tensor:
        return self._blocks(layer).to_mask(chosen) if self.config.SPARSER.TYPE == "block" else chosen
