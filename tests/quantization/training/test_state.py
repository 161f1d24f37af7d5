"""What training was told, as it is saved."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from sparsebit.quantization.training.state import TrainingState
from sparsebit.storage import ArtifactError, Fields
from tests.quantization.training.test_training import training


def test_the_state_of_a_model_round_trips() -> None:
    qmodel = training("uniform", observers="update", batch_norm="freeze", distill=0.5)
    state = qmodel.qat.state(qmodel)
    assert state.freeze and state.distill == 0.5 and state.temperature == 4.0 and state.following
    assert TrainingState.read(Fields(asdict(state), "a folder")) == state


def test_half_of_a_distillation_is_refused() -> None:
    written = asdict(TrainingState(freeze=False, following=[], held=[], distill=0.5, temperature=0.0))
    with pytest.raises(ArtifactError):
        TrainingState.read(Fields(written, "a folder"))
