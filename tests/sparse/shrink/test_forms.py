"""What is left as a graph or as the user's own class, and where it came from."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit.batches import Call
from sparsebit.errors import GraphError
from sparsebit.graph.capture import CapturedModule
from sparsebit.sparse import SparseModel
from sparsebit.sparse.origin import Origin
from sparsebit.sparse.shrink import forms
from sparsebit.sparse.shrink.graph import shrink_graph
from sparsebit.sparse.shrink.plan import ShrinkPlan

NET = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def pruned(kind: str) -> SparseModel:
    config = {"SPARSER": {"TYPE": kind, "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}
    smodel = SparseModel(NET, config, torch.zeros(1, 4))
    smodel.calc_params()
    return smodel


@pytest.mark.parametrize("kind", ["structured", "unstructured"])
def test_a_graph_and_the_users_own_class_compute_the_same(kind: str) -> None:
    smodel, x = pruned(kind), torch.randn(3, 4)
    graph, own = smodel.shrink(), smodel.shrink("module")
    assert isinstance(graph, CapturedModule) and type(own) is nn.Sequential
    assert torch.allclose(graph(x), own(x), atol=1e-6) and torch.allclose(graph(x), smodel(x), atol=1e-6)
    assert not hasattr(own[0], "sparser")
    for small, form in ((graph, "graph"), (own, "module")):
        origin = small.__dict__["shrunk_from"]
        assert isinstance(origin, Origin) and origin.form == form and origin.inputs is not None


@pytest.mark.parametrize("kind", ["structured", "unstructured"])
def test_an_unknown_form_or_choice_is_an_error(kind: str) -> None:
    smodel = pruned(kind)
    kept = smodel.kept()
    with pytest.raises(GraphError, match="no form 'modul'") as error:
        smodel.shrink("modul")  # type: ignore[arg-type]
    assert "'graph' or 'module' or 'pretrained'" in str(error.value)
    with pytest.raises(GraphError, match="not given by name"):
        smodel.shrink_to(None)  # type: ignore[arg-type]
    with pytest.raises(GraphError, match="what stays is not a tensor"):
        smodel.shrink_to({name: flags.tolist() for name, flags in kept.items()})
    with pytest.raises(GraphError, match="is named 'nowhere'"):
        smodel.shrink_to({"nowhere": torch.ones(3, dtype=torch.bool)})


def test_a_smaller_graph_that_cannot_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    smodel = pruned("structured")
    state = {name: tensor.clone() for name, tensor in smodel.state_dict().items()}

    def broken(gm: CapturedModule, plan: ShrinkPlan) -> CapturedModule:
        small = shrink_graph(gm, plan)
        small.get_submodule("2").weight = nn.Parameter(torch.zeros(2, 8))
        return small

    monkeypatch.setattr(forms, "shrink_graph", broken)
    with pytest.raises(GraphError, match="the smaller model cannot run") as error:
        smodel.shrink()
    assert "shapes cannot be multiplied" in str(error.value.got) and "IGNORE" in str(error.value.hint)
    assert all(torch.equal(tensor, state[name]) for name, tensor in smodel.state_dict().items())


def test_a_graph_in_training_mode_is_tried_with_one_sample() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)).train()
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}
    smodel = SparseModel(net, config, torch.zeros(2, 4))
    smodel.calc_params()
    smodel.examples = Call((torch.zeros(1, 4),))
    assert smodel.shrink().training
