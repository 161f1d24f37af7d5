"""The callbacks in transformers: by its own dispatch of events, and by the real Trainer where it can run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

transformers = pytest.importorskip("transformers")

from sparsebit.integrations.trainer import PruningCallback, QatCallback  # noqa: E402
from sparsebit.quantization import QuantModel  # noqa: E402
from sparsebit.sparse import SparseModel  # noqa: E402

needs_accelerate = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="transformers.Trainer needs accelerate"
)


class Classifier(nn.Module):
    """As transformers' own models: the loss comes with the output when labels are given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, features: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(features)
        return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def samples(count: int = 64) -> list[dict[str, Tensor]]:
    features = torch.randn(count, 6)
    return [{"features": x, "labels": x[:3].argmax()} for x in features]


def example() -> dict[str, Tensor]:
    return {"features": torch.randn(2, 6), "labels": torch.tensor([0, 1])}


def quantized() -> QuantModel:
    return QuantModel(Classifier().eval(), "w4a8", None, example())


def pruned(strategy: str = "l1norm") -> SparseModel:
    config = {
        "SPARSER": {"TYPE": "unstructured", "STRATEGY": strategy, "RATIO": 0.5},
        "SCHEDULE": {"TYPE": "cubic", "START": 1, "EVERY": 2, "TIMES": 3},
    }
    return SparseModel(Classifier(), config, None, example())


def zeros(smodel: SparseModel) -> float:
    weight = smodel.model.get_submodule("layers.0").weight
    assert isinstance(weight, Tensor)
    return float((weight == 0).float().mean())


def loop(model: nn.Module, callback: Any, steps: int = 8) -> list[float]:
    """The events of Trainer's inner loop in its order, sent by its own handler."""
    from transformers.trainer_callback import (
        CallbackHandler,
        DefaultFlowCallback,
        TrainerControl,
        TrainerState,
    )

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = torch.utils.data.DataLoader(samples(), batch_size=16)  # type: ignore[arg-type]
    handler = CallbackHandler([DefaultFlowCallback(), callback], model, None, optimizer, None)
    handler.train_dataloader = loader
    state, control = TrainerState(max_steps=steps), TrainerControl()
    args = SimpleNamespace(
        logging_first_step=False, logging_strategy="no", eval_strategy="no", save_strategy="no"
    )
    losses: list[float] = []
    model.train()
    control = handler.on_train_begin(args, state, control)
    while len(losses) < steps:
        for batch in loader:
            control = handler.on_step_begin(args, state, control)
            loss = model(**batch)["loss"]
            loss.backward()
            control = handler.on_pre_optimizer_step(args, state, control)
            optimizer.step()
            control = handler.on_optimizer_step(args, state, control)
            model.zero_grad()
            state.global_step += 1
            control = handler.on_step_end(args, state, control)
            losses.append(loss.item())
    handler.on_train_end(args, state, control)
    return losses


def test_events_calibrate_and_train_with_rounding() -> None:
    qmodel, callback = quantized(), QatCallback(batches=2, settle_after=3)
    losses = loop(qmodel, callback, 40)
    assert qmodel.enable_qat and callback.steps.steps == len(losses)
    assert sum(losses[-4:]) < 0.8 * sum(losses[:4])


@pytest.mark.parametrize("strategy", ["l1norm", "taylor"])
def test_events_prune_by_the_schedule(strategy: str) -> None:
    smodel, callback = pruned(strategy), PruningCallback()
    loop(smodel, callback)
    assert callback.steps.pruned_at == [2, 4, 6, 8] and 0.45 < zeros(smodel) < 0.55


def trainer(model: nn.Module, callback: Any, folder: Path, **settings: Any) -> Any:
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=16,
        learning_rate=0.01,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        logging_strategy="no",
        seed=0,
        **settings,
    )
    return transformers.Trainer(model=model, args=args, train_dataset=samples(), callbacks=[callback])


@needs_accelerate
def test_the_real_trainer_trains_with_rounding(tmp_path: Path) -> None:
    qmodel, callback = quantized(), QatCallback(batches=2)
    trainer(qmodel, callback, tmp_path, num_train_epochs=2, save_strategy="no").train()
    assert qmodel.enable_qat and callback.steps.steps == 8


@needs_accelerate
@pytest.mark.parametrize("strategy", ["l1norm", "taylor"])
def test_the_real_trainer_prunes_by_the_schedule(tmp_path: Path, strategy: str) -> None:
    smodel, callback = pruned(strategy), PruningCallback()
    trainer(smodel, callback, tmp_path, num_train_epochs=2, save_strategy="no").train()
    assert callback.steps.pruned_at == [2, 4, 6, 8] and 0.45 < zeros(smodel) < 0.55


@needs_accelerate
def test_a_restart_of_the_real_trainer_goes_on_with_the_schedule(tmp_path: Path) -> None:
    first = trainer(pruned(), PruningCallback(), tmp_path, max_steps=3, save_strategy="steps", save_steps=3)
    first.train()
    smodel, callback = pruned(), PruningCallback()
    trainer(smodel, callback, tmp_path, max_steps=8, save_strategy="no").train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-3")
    )
    assert callback.steps.pruned_at == [4, 6, 8] and 0.45 < zeros(smodel) < 0.55
