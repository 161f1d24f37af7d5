"""The callbacks in a trainer that calls Lightning's hooks in Lightning's order."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from sparsebit.integrations.lightning import PruningCallback, QatCallback
from sparsebit.quantization import QuantModel, parse_qconfig
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


@pytest.mark.filterwarnings("ignore")  # Lightning's own, about workers and logging
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_in_the_real_trainer(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    real = sys.modules[package]
    configs = {"W.QUANTIZER.TYPE": "lsq", "A.QUANTIZER.TYPE": "lsq", "DEVICE": "cpu"}
    config = parse_qconfig("w4a8", [f"{key}={value}" for key, value in configs.items()])
    qmodel = QuantModel(net().eval(), config, (torch.randn(2, 6),))
    pruning = {
        "SPARSER": {"TYPE": "unstructured", "STRATEGY": "l1norm", "RATIO": 0.5},
        "SCHEDULE": {"TYPE": "iterative", "START": 0, "EVERY": 2, "TIMES": 2},
    }
    smodel = SparseModel(net(), pruning, (torch.randn(2, 6),))
    qat, prune = QatCallback(batches=4), PruningCallback()

    class Both(real.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.quantized, self.pruned = qmodel, smodel

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            return sum(functional.cross_entropy(m(batch[0]), batch[1]) for m in (qmodel, smodel))  # type: ignore[return-value]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05)

    module = Both()
    trainer = real.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        accumulate_grad_batches=2,
        callbacks=[qat, prune],
        default_root_dir=tmp_path,
    )
    trainer.fit(module, DataLoader(data(), batch_size=None))  # type: ignore[arg-type]
    assert qmodel.enable_qat and qat.steps.steps == trainer.global_step == 4
    assert prune.steps.pruned_at == [1, 3]
    trained = {id(p) for group in trainer.optimizers[0].param_groups for p in group["params"]}
    assert {id(q.scale) for q in qmodel.quantizers.values()} <= trained, (
        "the steps of the grids are learned too"
    )
