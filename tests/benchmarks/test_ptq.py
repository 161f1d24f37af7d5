"""The comparison of quantization tools, on a small network: layers line up by name and ratios are ratios."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from benchmarks.ptq.layers import FloatLayers, Sqnr
from benchmarks.ptq.memory import measure
from benchmarks.ptq.method import Missing
from benchmarks.ptq.methods import METHODS, OURS
from benchmarks.ptq.timing import compare
from benchmarks.ptq.torchao_peer import TorchAO, dynamic_shapes

ROOT = Path(__file__).resolve().parents[2]


class Same(nn.Conv2d):
    """Its own forward makes it no module of the graph but a function on a weight."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.nn.functional.conv2d(input, self.weight, self.bias, padding=1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = Same(8, 8, 3)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        x = (x + self.second(x)).relu()
        return self.head(x.mean((2, 3)))


@pytest.fixture
def net() -> Net:
    net = Net()
    net.norm.running_mean = torch.randn(8) / 10
    net.norm.running_var = torch.rand(8) + 0.5
    return net.eval()


BATCHES = [(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed)),) for seed in range(3)]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_quantizes_and_shows_the_layers_of_the_model(name: str, net: Net) -> None:
    try:
        method = METHODS[name]()
    except Missing as missing:
        pytest.skip(str(missing))
    method.prepare(net, BATCHES[0])
    method.calibrate(BATCHES)
    method.calibrate(BATCHES)  # again, as for the times
    exact, layers, output = FloatLayers(net, BATCHES[0]), Sqnr(), Sqnr()
    with torch.no_grad():
        output.add({"y": net(*BATCHES[0])}, {"y": method.predict(*BATCHES[0])})
    layers.add(exact(BATCHES[0]), method.layers(BATCHES[0]))
    assert list(layers.decibels()) == ["first", "second", "head"]
    for decibels in (*layers.decibels().values(), *output.decibels().values()):
        assert 15 < decibels < 70  # quantized, and the same layer


def test_the_layers_of_the_float_model_have_batch_norm_inside(net: Net) -> None:
    found = FloatLayers(net, BATCHES[0])(BATCHES[0])
    with torch.no_grad():
        torch.testing.assert_close(found["first"], net.norm(net.first(BATCHES[0][0])), rtol=1e-4, atol=1e-5)


def test_decibels() -> None:
    sqnr = Sqnr()
    for _ in range(2):
        sqnr.add(
            {"a": torch.full((4,), 10.0), "b": torch.ones(2), "c": torch.ones(3)},
            {"a": torch.full((4,), 11.0), "b": torch.ones(2), "c": torch.ones(4)},
        )
    assert sqnr.decibels() == {"a": pytest.approx(20.0), "b": 200.0}  # c has another shape


def test_times_are_compared_in_turns() -> None:
    order: list[str] = []
    found = compare(lambda: order.append("a"), lambda: order.append("b"), rounds=3, patience=60)
    assert "".join(order) == "abbaab"
    assert found.rounds == 3
    assert compare(lambda: None, lambda: None, rounds=9, patience=0).rounds == 1


def test_any_batch_and_any_length() -> None:
    images, tokens = torch.zeros(2, 3, 8, 8), torch.zeros(2, 7, dtype=torch.int64)
    assert [list(axes) for axes in dynamic_shapes((images, tokens))] == [[0], [0, 1]]


def test_without_torchao_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Missing, match="pip install --no-deps --target FOLDER torchao"):
        TorchAO()


@pytest.mark.slow
@pytest.mark.usefixtures("data_dir")
def test_a_run_on_real_data(tmp_path: Path) -> None:
    program = "benchmarks.ptq.run"
    options = ["--task", "cifar10_resnet20", "--method", "sparsebit_mse", "--limit", "64", "--samples", "32"]
    options += ["--count", "64", "--rounds", "1", "--output", str(tmp_path)]
    subprocess.run([sys.executable, "-m", program, *options], check=True, cwd=ROOT, capture_output=True)
    result = json.loads((tmp_path / "cifar10_resnet20.json").read_text(encoding="utf-8"))
    row = result["methods"]["sparsebit_mse"]
    assert row["sqnr_layers_min_db"] > 20
    assert len(row["sqnr_layers_db"]) == 20
    assert row["metrics"]["top-1 %"] > 80
    assert result["environment"]["seed"] == 0
    assert 0 < result["float"]["memory"]["before_mb"] <= row["memory"]["peak_mb"]


@pytest.mark.slow
@pytest.mark.usefixtures("data_dir")
def test_memory_does_not_grow_with_the_number_of_batches() -> None:
    few, many = (measure("cifar10_resnet20", "sparsebit_mse", count, 32) for count in (64, 512))
    assert many["peak_mb"] < few["peak_mb"] * 1.05 + 10


def test_every_observer_is_compared() -> None:
    from sparsebit.quantization import OBSERVERS

    assert {f"sparsebit_{name}" for name in OBSERVERS} <= set(OURS)
