"""The callbacks in a trainer that calls Lightning's hooks in Lightning's order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.integrations.lightning import PruningCallback, QatCallback
from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel


class Module(nn.Module):
    """What a user of Lightning writes."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        loss: Tensor = functional.cross_entropy(self.model(batch[0]), batch[1])
        return loss


def fit(
    module: Module, loader: list[Any], callbacks: list[Any], accumulate: int = 1, epochs: int = 2
) -> list[float]:
    """Lightning's automatic optimization: the closure clears gradients before it computes new ones."""
    trainer = SimpleNamespace(global_step=0, train_dataloader=loader)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    losses = []
    module.train()
    for callback in callbacks:
        callback.on_train_start(trainer, module)
    for _ in range(epochs):
        for index, batch in enumerate(loader):
            if index % accumulate == 0:
                optimizer.zero_grad()
            loss = module.training_step(batch, index)
            loss.backward()
            losses.append(loss.item())
            if (index + 1) % accumulate == 0:
                optimizer.step()
                trainer.global_step += 1
            for callback in callbacks:
                callback.on_train_batch_end(trainer, module, loss, batch, index)
    return losses


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))


def data() -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(8, 16, 6)
    return [(each, each[:, :3].argmax(1)) for each in x]


def test_quantization_aware_training() -> None:
    qmodel = QuantModel(net().eval(), "w4a8", (torch.randn(2, 6),))
    losses = fit(Module(qmodel), data(), [QatCallback(batches=4, settle_after=3)], epochs=5)
    assert qmodel.enable_qat and sum(losses[-8:]) < 0.85 * sum(losses[:8])


@pytest.mark.parametrize("strategy", ["l1norm", "taylor"])
def test_gradual_pruning_counts_steps_of_the_optimizer(strategy: str) -> None:
    config = {
        "SPARSER": {"TYPE": "unstructured", "STRATEGY": strategy, "RATIO": 0.5},
        "SCHEDULE": {"TYPE": "iterative", "START": 0, "EVERY": 2, "TIMES": 2},
    }
    smodel, callback = SparseModel(net(), config, (torch.randn(2, 6),)), PruningCallback()
    fit(Module(smodel), data(), [callback], accumulate=2, epochs=1)
    assert callback.steps.pruned_at == [1, 3]
    weight = smodel.model.get_submodule("0").weight
    assert isinstance(weight, Tensor) and 0.45 < (weight == 0).float().mean() < 0.55
