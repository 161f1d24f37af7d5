"""What notebooks show: complete, and safe whatever layers are called."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.analysis import cost, profile, sensitivity
from sparsebit.graph.capture import capture
from sparsebit.graph.ops import coverage
from sparsebit.integrations import notebook
from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel
from tests.report.samples import HOSTILE, batches, quantized, sample


def things() -> Iterator[tuple[Any, str]]:
    qmodel = quantized()
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    graph = capture(net.eval(), torch.zeros(1, 4))
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    smodel = SparseModel(net, config, torch.zeros(1, 4))
    smodel.calc_params()
    yield smodel.groups(), "channel groups"
    yield coverage(graph), "operators known"
    yield (
        sensitivity(net, "w4a8", [torch.randn(4, 4)], example_inputs=torch.zeros(1, 4), progress=False),
        "bits",
    )
    yield qmodel, "stem.weight"
    yield qmodel.plan, "plan for"
    yield profile(qmodel, batches(), progress=False), "SQNR"
    yield graph, "relu"
    yield cost(graph), "MACs"
    yield smodel, "kept"
    yield smodel.report(), "kept"
    yield sample(), "iframe"


def test_every_kind_shows_itself_without_being_asked() -> None:
    for value, words in things():
        text = value._repr_html_()
        assert words in text and text == notebook.to_html(value), type(value)
        assert HOSTILE not in text and "<script" not in text, type(value)


def test_what_is_shown_is_escaped_and_has_the_colours_of_the_notebook() -> None:
    net = nn.Module()
    net.add_module(f"<b>{chr(0x130)}", nn.Linear(4, 4))
    net.forward = lambda x: net.get_submodule(f"<b>{chr(0x130)}")(x)  # type: ignore[method-assign]
    qmodel = QuantModel(net.eval(), "w4a8", (torch.zeros(1, 4),))
    for text in (qmodel._repr_html_(), qmodel.plan._repr_html_(), qmodel.model._repr_html_()):
        assert "<b>\u0130" not in text and "color" not in text


def test_a_check_of_a_file_shows_itself(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    done = quantized().export_onnx(batches()[0], tmp_path / "m.onnx")
    assert "SQNR" in done.report._repr_html_() and "m.onnx" in done._repr_html_()


def test_anything_else_is_escaped_text() -> None:
    assert "<b>" not in notebook.to_html("<b>") and "&lt;b&gt;</pre>" in notebook.to_html("<b>")
