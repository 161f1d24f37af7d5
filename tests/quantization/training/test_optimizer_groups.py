"""Parameters in groups for an optimizer."""

from __future__ import annotations

from sparsebit.quantization.training.optimizer_groups import parameter_groups
from tests.quantization.training.test_training import training


def test_groups_have_rates_of_their_own_and_cover_everything_once() -> None:
    qmodel = training("lsq+")
    groups = qmodel.parameter_groups(0.1, quantizer_lr=0.001, weight_decay=0.01)
    weights, small, learned = groups
    assert [(g["lr"], g["weight_decay"]) for g in groups] == [(0.1, 0.01), (0.1, 0.0), (0.001, 0.0)]
    assert all(p.dim() > 1 for p in weights["params"]) and all(p.dim() == 1 for p in small["params"])
    own = {id(p) for q in qmodel.quantizers.values() for p in q.parameters()}
    assert {id(p) for p in learned["params"]} == own
    ids = [id(p) for g in groups for p in g["params"]]
    assert sorted(ids) == sorted(id(p) for p in qmodel.parameters())
    assert parameter_groups(qmodel, 0.1)[2]["lr"] == 0.1
    assert len(training("uniform").parameter_groups(0.1)) == 2
    qmodel.model.conv1.weight.requires_grad_(False)
    assert len(qmodel.parameter_groups(0.1)[0]["params"]) == 2
