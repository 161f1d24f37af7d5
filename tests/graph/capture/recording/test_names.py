"""The tensors and modules of a model by name, whichever way the model holds them."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.capture.recording.names import Names


def test_every_kind_of_tensor_has_the_first_of_its_names() -> None:
    model = nn.Module()
    model.inner = nn.BatchNorm1d(2)
    model.again = model.inner
    model.table = torch.zeros(3)
    model.register_buffer("offset", torch.ones(1))
    names = Names(model)
    assert names.paths == {id(model): "", id(model.inner): "inner"}
    assert names.state[id(model.inner.weight)] == "inner.weight"
    assert names.state[id(model.inner.running_mean)] == "inner.running_mean"
    assert names.state[id(model.offset)] == "offset" and names.plain == {id(model.table): "table"}


def test_a_view_of_a_parameter_leads_to_it() -> None:
    layer = nn.Linear(2, 3)
    view = layer.weight.detach()[0]
    assert Names(layer).parameters[view.untyped_storage()._cdata] is layer.weight
