"""This library: one config, half of the multiply-accumulates."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

PACKAGE = "sparsebit"
SETTINGS = {  # criterion, and whether channels that additions read stay
    "L1 norm": ("l1norm", False),
    "L1 norm, additions kept": ("l1norm", True),
    "Taylor, additions kept": ("taylor", True),
}


def prune(
    model: nn.Module, images: list[Tensor], labels: list[Tensor], setting: str, share: float
) -> nn.Module:
    criterion, additions_kept = SETTINGS[setting]
    batches: Any = list(zip(images, labels, strict=True)) if criterion == "taylor" else None
    # user: begin
    from sparsebit import SparseModel

    sparser = {"TYPE": "structured", "STRATEGY": criterion, "RATIO": share, "TARGET": "macs", "ROUND_TO": 1}
    pruner = SparseModel(model, {"SPARSER": sparser}, example_inputs=images[0][:2])
    if additions_kept:
        pruner.disable_sparse_before_add()
    pruner.calc_params(batches, loss=functional.cross_entropy)
    small = pruner.shrink()
    # user: end
    return small
