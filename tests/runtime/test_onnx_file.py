"""An ONNX file is called like a model, and its size counts the weights beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("onnxruntime")

from sparsebit import capture
from sparsebit.errors import SparsebitError
from sparsebit.export import export_graph
from sparsebit.runtime import OnnxFile
from sparsebit.runtime.onnx_file import weight_files


def test_a_file_is_called_like_its_model(tmp_path: Path) -> None:
    model, x = nn.Linear(4, 3).eval(), torch.randn(2, 4)
    path = export_graph(capture(model, (x,)), (x,), path=tmp_path / "net.onnx").path
    file = OnnxFile(path, threads=1)
    more = torch.randn(5, 4, requires_grad=True)
    torch.testing.assert_close(file(more), model(more), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(file(**{file.input_names[0]: x}), model(x), rtol=1e-5, atol=1e-5)
    assert file.example(batch=7)[file.input_names[0]].shape == (7, 4)
    with pytest.raises(SparsebitError, match="the inputs do not fit") as caught:
        file(x, x)
    assert "2 in order" in str(caught.value)
    with pytest.raises(SparsebitError, match=r"(?s)is in bfloat16.*call \.float\(\)"):
        file(x.bfloat16())


def test_weights_beside_a_file_are_counted(tmp_path: Path) -> None:
    model, x = nn.Linear(64, 64).eval(), torch.randn(2, 64)
    made = export_graph(capture(model, (x,)), (x,), path=tmp_path / "net.onnx", external_data=True)
    assert weight_files(made.path) == {"net.onnx.data"} and weight_files(tmp_path / "none.onnx") == set()
    assert OnnxFile(made.path).bytes == made.bytes == sum(file.stat().st_size for file in made.files)
