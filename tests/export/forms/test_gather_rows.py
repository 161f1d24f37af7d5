"""Embeddings: quantized rows are gathered, and the table stays integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.export.nets import close, config, initializers, op_types, quantized, run_file


class Words(nn.Module):
    """One table, read twice, and once as the weight of a product."""

    def __init__(self, tied: bool = False) -> None:
        super().__init__()
        self.table, self.last, self.tied = nn.Embedding(400, 16), nn.Linear(16, 8), tied

    def forward(self, ids: Tensor) -> Tensor:
        h = torch.tanh(self.table(ids) + self.table(ids.flip(1)))
        return h @ self.table.weight.T if self.tied else torch.as_tensor(self.last(h))


@pytest.mark.parametrize(
    ("weights", "gathers"),
    [
        ({}, 4),  # rows and their scales, twice
        ({"scheme": "per-channel-affine"}, 6),  # and their zero points
        ({"scheme": "per-tensor-symmetric"}, 2),
        ({"bits": 4}, 4),
    ],
)
def test_only_the_rows_are_dequantized(weights: dict[str, Any], gathers: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 400, (3, 7))
    qmodel = quantized(Words(), ids, config(w=weights, BACKEND="virtual"))
    done = qmodel.export_onnx(ids, tmp_path / "net.onnx")
    assert done.report.ok and "table.weight" in done.exported.tensors
    assert done.exported.rewrites["gather_rows"] == 2 and op_types(done.path).count("Gather") == gathers
    stored = initializers(done.path)["table.weight.codes"]
    assert tuple(stored.dims) == (400, 16) and len(stored.raw_data) == 400 * 16 * weights.get("bits", 8) // 8
    others = torch.randint(0, 400, (2, 5))
    assert close(run_file(done.path, others)[0], qmodel(others))


class Channels(nn.Module):
    """The rows of a table as channels, then a ReLU on a grid of unsigned values."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Embedding(20, 8), nn.Linear(6, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.as_tensor(self.last(torch.relu(self.table(ids).transpose(1, 2))))


@pytest.mark.parametrize(("bits", "opset"), [(8, None), (8, 21), (4, None)])
@pytest.mark.parametrize("scheme", ["per-tensor-symmetric", "per-tensor-affine"])
def test_rows_with_one_scale_open_at_every_opset(
    bits: int, opset: int | None, scheme: str, tmp_path: Path
) -> None:
    ids = torch.randint(0, 20, (3, 6))
    qmodel = quantized(Channels(), ids, config(w={"bits": bits, "scheme": scheme}, BACKEND="onnxruntime"))
    done = qmodel.export_onnx(ids, tmp_path / "net.onnx", opset_version=opset)
    assert done.report.ok and done.exported.rewrites["gather_rows"] == 1


def test_a_wrong_row_scale_is_found(tmp_path: Path) -> None:
    import onnx

    from sparsebit.export import check

    ids = torch.randint(0, 400, (3, 7))
    qmodel = quantized(Words(), ids)
    done = qmodel.export_onnx(ids, tmp_path / "net.onnx").exported
    proto = onnx.load(str(done.path))
    tensor = next(t for t in proto.graph.initializer if t.name == "table.weight.row_scales")
    tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor) * 1.001, tensor.name))
    onnx.save(proto, str(done.path))
    report = check(qmodel.model, done, [((ids,), {})])
    assert "weight 'table.weight': " in report.problems[0]


def test_a_table_that_is_also_a_weight_is_right(tmp_path: Path) -> None:
    ids = torch.randint(0, 400, (3, 7))
    done = quantized(Words(tied=True), ids).export_onnx(ids, tmp_path / "net.onnx")
    assert done.report.ok
