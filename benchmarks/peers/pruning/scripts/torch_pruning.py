"""Torch-Pruning: groups of channels by its dependency graph, removed step by step until the budget is met."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

PACKAGE = "torch-pruning"
SETTINGS = {  # criterion, and whether channels that additions read stay
    "L1 norm": ("l1norm", False),
    "L1 norm, additions kept": ("l1norm", True),
    "Taylor, additions kept": ("taylor", True),
}


def prune(
    model: nn.Module, images: list[Tensor], labels: list[Tensor], setting: str, share: float
) -> nn.Module:
    criterion, additions_kept = SETTINGS[setting]
    taylor = criterion == "taylor"
    # user: begin
    import torch_pruning as tp

    example = images[0][:2]
    importance = (
        tp.importance.GroupTaylorImportance() if taylor else tp.importance.GroupMagnitudeImportance(p=1)
    )

    def kept(name, module):
        return isinstance(module, nn.Linear) or (
            additions_kept and (name == "conv1" or name.endswith("conv2"))
        )

    before, _ = tp.utils.count_ops_and_params(model, example)
    pruner = tp.pruner.BasePruner(
        model,
        example,
        importance=importance,
        pruning_ratio=0.9,
        iterative_steps=90,
        ignored_layers=[module for name, module in model.named_modules() if kept(name, module)],
    )
    while tp.utils.count_ops_and_params(model, example)[0] > (1 - share) * before:
        if taylor:
            model.zero_grad()
            for image, label in zip(images, labels, strict=True):
                functional.cross_entropy(model(image), label).backward()
        pruner.step()
    # user: end
    return model
