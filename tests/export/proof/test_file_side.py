"""What a file says of itself: its pieces, and by how much its kernels may round."""

from __future__ import annotations

from pathlib import Path

import onnx_ir
import torch
from torch import Tensor, nn

from sparsebit.export import check, export_graph
from sparsebit.export.proof.file_side import cut, rounding_steps, stored_weights
from tests.export.nets import Residual, quantized


class Noise(nn.Module):
    """The mean of a normalized image: zero, up to the rounding of the sums."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(nn.functional.instance_norm(x).mean((2, 3)))  # type: ignore[no-any-return]


def test_a_tensor_of_rounding_errors_is_not_called_a_mismatch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 12, 12)
    qmodel = quantized(Noise(), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    assert rounding_steps(onnx_ir.load(done.path), 4.0)["mean"] > 100
    assert check(qmodel.model, done, [((x,), {})]).ok


def test_of_other_tensors_nothing_is_allowed_for_it(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    qmodel = quantized(Residual(), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    model = onnx_ir.load(done.path)
    assert 0 < max(rounding_steps(model, 4.0).values()) < 0.2
    assert {name for name, _ in stored_weights(model)} == set(qmodel.weights())
    names = {name: 4 for name in done.tensors if name not in qmodel.weights()}
    made = cut(model, names)
    assert set(made.feeds) == set(made.reads) == set(names)
    assert made.proto.graph.input[0].name == "x" and len(made.proto.graph.input) == 1 + len(made.feeds)
