"""The engine that goes through ``torch.export``: free sizes, and the model's own weights."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit import capture
from sparsebit.export.translate import program_engine
from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.request import TranslationRequest


def test_a_free_batch_and_the_lowest_opset_it_writes() -> None:
    net, x = nn.Sequential(nn.Linear(4, 2), nn.ReLU()).eval(), torch.randn(3, 4)
    flat = FlatGraph(capture(net, x)).eval()
    model = program_engine.translate(TranslationRequest(flat, [x], ["x"], ["y"], [], 13), {"x": {0: "batch"}})
    assert model.opset_imports[""] == program_engine.LOWEST_OPSET
    assert not isinstance(model.graph.inputs[0].shape[0], int) and model.graph.inputs[0].shape[1] == 4
    assert [value.name for value in (*model.graph.inputs, *model.graph.outputs)] == ["x", "y"]
