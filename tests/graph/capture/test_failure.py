"""A failing call of a captured graph names the node and the model's own line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.graph.capture import capture


class _Folds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).view(-1, 3, 2)


def test_the_note_names_node_shapes_and_line(capsys: pytest.CaptureFixture[str]) -> None:
    graph = capture(_Folds(), torch.randn(3, 4))
    with pytest.raises(RuntimeError, match="invalid for input of size 8") as caught:
        graph(torch.randn(4, 4))
    notes = "\n".join(caught.value.__notes__)
    assert "node 'view'" in notes and "fc (4, 2)" in notes
    assert "test_failure.py:" in notes and "view(-1, 3, 2)" in notes
    assert "capture again" in notes
    assert capsys.readouterr().err == ""


def test_the_error_keeps_its_type() -> None:
    graph = capture(nn.Sequential(nn.Embedding(3, 2)), torch.zeros(2, dtype=torch.long))
    with pytest.raises(IndexError) as caught:
        graph(torch.full((2,), 7))
    assert any("node" in note for note in caught.value.__notes__)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return y.masked_fill(x > 0, torch.finfo(y.dtype).min)


def test_a_failure_under_autocast_says_to_capture_under_it() -> None:
    model, x = Masked(), torch.ones(1, 4)
    graph = capture(model, x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with pytest.raises(RuntimeError, match="without overflow") as error:
            graph(x)
        assert "inside torch.autocast as well" in error.value.__notes__[-1]
        assert torch.equal(capture(model, x)(x), model(x))
