"""What notebooks show: complete, and safe whatever layers are called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.analysis import cost, profile
from sparsebit.graph.capture import capture
from sparsebit.integrations import notebook
from sparsebit.sparse import SparseModel
from tests.report.samples import HOSTILE, batches, quantized, sample


def things() -> Iterator[tuple[Any, str]]:
    qmodel = quantized()
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    graph = capture(net.eval(), torch.zeros(1, 4))
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    smodel = SparseModel(net, config, torch.zeros(1, 4))
    smodel.calc_params()
    yield qmodel, "stem.weight"
    yield qmodel.plan, "plan for"
    yield profile(qmodel, batches(), progress=False), "SQNR"
    yield graph, "relu"
    yield cost(graph), "MACs"
    yield smodel, "kept"
    yield smodel.report(), "kept"
    yield sample(), "iframe"


@pytest.mark.parametrize("index", range(8))
def test_every_kind_has_a_display(index: int) -> None:
    value, words = list(things())[index]
    text = notebook.to_html(value)
    assert words in text and HOSTILE not in text
    notebook.load_ipython_extension(None)
    notebook.show_in_notebooks()
    assert value._repr_html_() == text


def test_anything_else_is_escaped_text() -> None:
    assert notebook.to_html("<b>") == "<pre>&lt;b&gt;</pre>"
