"""Both pipelines and the interpreter on whole models: outputs stay, and so does the user's model."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from sparsebit.graph.capture import capture
from sparsebit.graph.passes import FOLD, SIMPLIFY, run_passes
from sparsebit.graph.run import run_graph
from tests.zoo import ZOO, ZooEntry, outputs_of

MODELS = [
    entry
    for entry in ZOO.values()
    if entry.family in ("cnn", "rnn", "nasty") and not (entry.refuses or entry.random or entry.stateful)
]


def call(model: torch.nn.Module, entry: ZooEntry) -> list[Tensor]:
    args, kwargs = entry.inputs(entry.batches[0])
    with torch.no_grad():
        return outputs_of(model(*args, **kwargs))


@pytest.mark.filterwarnings("ignore::sparsebit.errors.SpecializationWarning")
@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.name)
def test_outputs_stay_and_the_model_is_untouched(entry: ZooEntry) -> None:
    model = entry.make()
    before = copy.deepcopy(model.state_dict())
    args, kwargs = entry.inputs(entry.batches[0])
    gm = capture(model, args, kwargs)
    expected = call(gm, entry)

    args, kwargs = entry.inputs(entry.batches[0])
    nodes = [node for node in gm.graph.nodes if node.op != "output"]
    with torch.no_grad():
        stopped = run_graph(gm, args, kwargs, until=nodes[len(nodes) // 2].name)
        resumed = outputs_of(run_graph(gm, state=stopped))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(resumed, expected, strict=True))

    run_passes(gm, SIMPLIFY)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(call(gm, entry), expected, strict=True))

    run_passes(gm, FOLD)
    for ours, theirs in zip(call(gm, entry), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert model.state_dict().keys() == before.keys()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, before[key], rtol=0, atol=0, equal_nan=True)
