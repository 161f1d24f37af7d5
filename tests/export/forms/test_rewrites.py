"""The exact rewrites: what they change in the file, and that they change no number."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import torch
from torch import Tensor, nn

from sparsebit.export import check, export_graph
from tests.export.nets import config, initializers, op_types, quantized


class Clipped(nn.Module):
    """One convolution with an activation that a symmetric grid cannot take over by itself."""

    def __init__(self, activation: nn.Module, pool: bool = False) -> None:
        super().__init__()
        self.first, self.activation = nn.Conv2d(3, 8, 3), activation
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()
        self.second = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.pool(self.activation(self.first(x))))


class Bounded(nn.Module):
    """``torch.clip``, whose bounds are cast in the file."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.clip(x, -0.3, 0.2)


SYMMETRIC = config(a={"scheme": "per-tensor-symmetric"})


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.3, 0.2), Bounded()])
def test_activations_become_clips_of_codes(activation: nn.Module, pool: bool, tmp_path: Path) -> None:
    x = torch.randn(2, 3, 10, 10)
    qmodel = quantized(Clipped(activation, pool), x, SYMMETRIC)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((x,), {}), ((5 * x,), {})])
    assert report.ok, report
    assert done.rewrites["clip_codes"] == 1 and "Relu" not in op_types(done.path)
    assert not report.fallbacks and {op.runs_as for op in report.ops} == {"QLinearConv"}


def test_a_relu_that_the_codes_clip_anyway_is_dropped(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 10, 10)
    qmodel = quantized(Clipped(nn.ReLU()), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    assert not {"Relu", "Clip"} & set(op_types(done.path))
    assert check(qmodel.model, done, [((5 * x,), {})]).ok


class FirstToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).sum() + self.b(x[:, 0])


def test_integers_pass_what_selects(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    qmodel = quantized(FirstToken(), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", dynamic_axes=None)
    report = check(qmodel.model, done, [((x,), {})])
    assert report.ok and not report.fallbacks and len(report.ops) == 2, report


class Rolled(nn.Module):
    """Shifts a quantized tensor round, as windows of attention are."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.roll(torch.relu(self.a(x)), 2, 1))  # type: ignore[no-any-return]


def test_integers_pass_what_rolls(tmp_path: Path) -> None:
    x = torch.randn(2, 5, 32)
    qmodel = quantized(Rolled(), x)
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((x,), {})])
    assert report.ok and not report.fallbacks, report
    assert [op.runs_as for op in report.ops if op.op == "MatMul"] == 2 * ["MatMulIntegerToFloat"]


class Padded(nn.Module):
    """Reads the size of a quantized tensor, as models that pad do."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.a(x))
        missing = x.size(2) - y.size(2)
        return nn.functional.pad(self.b(y), [0, missing])


def test_asking_for_a_size_does_not_keep_a_tensor_in_float(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 10, 10)
    qmodel = quantized(Padded(), x)
    axes = {"x": {0: "batch", 2: "height", 3: "width"}}
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx", dynamic_axes=axes)
    report = check(qmodel.model, done, [((x,), {}), ((torch.randn(1, 3, 12, 9),), {})])
    assert report.ok and not report.fallbacks, report


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("bits", [4, 8])
def test_weights_alone_run_in_blocks(bits: int, rank: int, tmp_path: Path) -> None:
    x = torch.randn(*((2, 64) if rank == 2 else (2, 5, 64)))
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64)).eval()
    qmodel = quantized(model, x, config(w={"bits": bits}, a={"bits": 0}))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    report = check(qmodel.model, done, [((x,), {})])
    assert report.ok and {op.runs_as for op in report.ops} == {"MatMulNBits"} and len(report.ops) == 2, report


def test_four_bit_weights_reach_integer_kernels(tmp_path: Path) -> None:
    x = torch.randn(2, 3, 10, 10)
    qmodel = quantized(Clipped(nn.ReLU()), x, config(w={"bits": 4}))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    assert initializers(done.path)["first.weight.codes"].data_type == onnx.TensorProto.INT4
    report = check(qmodel.model, done, [((x,), {})])
    assert report.ok and {op.runs_as for op in report.ops} == {"QLinearConv"}, report


class Joined(nn.Module):
    """A skip on integers and a branch in float, joined and read by a convolution; then a mean over the image."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (
            nn.Conv2d(3, 8, 3, padding=1),
            nn.Conv2d(8, 8, 2, stride=2),
            nn.Conv2d(16, 8, 3),
        )
        self.up, self.fc = nn.ConvTranspose2d(8, 8, 2, stride=2), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.a(x))
        x = torch.cat([x, self.up(torch.relu(self.b(x)))], 1)
        return self.fc(torch.relu(self.c(x)).mean([2, 3]))  # type: ignore[no-any-return]


@pytest.mark.parametrize("bits", [6, 8])
def test_joins_and_means_run_on_integers(bits: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 12, 12)
    qmodel = quantized(Joined(), x, config(a={"bits": bits}))
    done = export_graph(qmodel.model, (x,), path=tmp_path / "net.onnx")
    assert done.rewrites["grids_before_concat"] == 1 and done.rewrites["mean_as_pool"] == 1
    report = check(qmodel.model, done, [((x,), {}), ((3 * x[:1],), {})])
    assert report.ok and not report.fallbacks, report
    kinds = {op.op: op.runs_as for op in report.ops}
    assert kinds["Concat"] == "QLinearConcat" and kinds["GlobalAveragePool"] == "QLinearGlobalAveragePool"
    assert not any(t.blame for t in report.tensors)
