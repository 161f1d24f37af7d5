"""Where evidence comes from: data, remembered inputs, or a training step."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from sparsebit.batches import Call, DataError, ModelInputs
from sparsebit.graph.capture import capture
from sparsebit.sparse import parse_sconfig
from sparsebit.sparse.choose.from_config import make_pruner
from sparsebit.sparse.choose.pruner import Pruner
from sparsebit.sparse.evidence.gather import collect
from sparsebit.sparse.masking.masked_graph import MaskedGraph
from tests.sparse.evidence.measuring import measure
from tests.sparse.nets import images, labels, residual


def prepare(strategy: str) -> tuple[MaskedGraph, Pruner, ModelInputs]:
    net = residual()
    gm = capture(net, images())
    config = parse_sconfig({"SPARSER": {"TYPE": "structured", "STRATEGY": strategy, "RATIO": 0.5}})
    return MaskedGraph(gm), make_pruner(gm, config), ModelInputs(net, images())


def test_a_criterion_of_the_weights_needs_nothing() -> None:
    assert collect(*prepare("l1norm"), None, None) == {}


def test_remembered_inputs_are_data() -> None:
    seen = collect(*prepare("activation_norm"), None, None, seen=[Call((images(),))])["input_norm"]
    given = collect(*prepare("activation_norm"), [images()], None)["input_norm"]
    assert all(torch.equal(value, given[name]) for name, value in seen.items())


def test_a_training_step_leaves_gradients() -> None:
    graph, pruner, inputs = prepare("taylor")
    torch.nn.functional.cross_entropy(graph(images()), labels()).backward()
    found = collect(graph, pruner, inputs, None, None, training=True)["gradient"]
    assert torch.equal(found["conv1.weight"], graph.gm.get_parameter("conv1.weight").grad)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"the criterion needs data: gradient[\s\S]*loss="):
        collect(graph, pruner, inputs, None, None)


def test_the_model_stays_as_it_is() -> None:
    net = residual().train()
    net.stem.weight.requires_grad_(False)
    gm = capture(net, images())
    before = {name: value.clone() for name, value in gm.state_dict().items()}
    data = [(images(), labels())]
    found = measure(gm, {"gradient", "input_norm"}, data, functional.cross_entropy, ["bn1.weight"])
    assert "bn1.weight" in found["gradient"]
    assert bool((found["gradient"]["stem.weight"] != 0).any())
    assert not net.stem.weight.requires_grad
    assert gm.training
    assert net.conv1.weight.grad is None
    assert all(torch.equal(value, before[name]) for name, value in gm.state_dict().items())
