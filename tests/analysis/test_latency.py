"""Latency as a target: measured in ONNX Runtime unless the user says how."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis import (
    RuntimeClock,
    latency,
    runtime_latency,
)
from sparsebit.errors import SparsebitError
from sparsebit.graph.capture import capture
from sparsebit.quantization import QuantModel, parse_qconfig
from sparsebit.runtime import timing
from sparsebit.sparse import SparseModel
from tests.analysis.chain import FAST
from tests.sparse.nets import residual

LATENCY = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "TARGET": "latency"}}


class Tower(nn.Module):
    """Wide enough for the products to be what takes the time."""

    def __init__(self, width: int = 768) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.middle = nn.Linear(width, width)
        self.last = nn.Linear(width, 8)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        y: Tensor = self.last(torch.relu(self.middle(torch.relu(self.first(x)))))
        return y if scale is None else y * scale


def test_half_of_the_time_in_onnx_runtime_is_gone() -> None:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    kwargs = {"x": torch.randn(32, 64), "scale": torch.ones(8)}
    smodel = SparseModel(Tower().eval(), LATENCY, example_kwargs=kwargs)
    smodel.calc_params()
    report = smodel.report()
    assert report.reached is not None and report.reached.met
    assert "latency: " in str(report) and " ms" in str(report)
    left = report.params_after / report.params_before
    assert 0.05 < left < 0.9  # noise moves it, but nothing at all and all there is are wrong
    assert torch.allclose(smodel.shrink()(**kwargs), smodel(**kwargs), atol=1e-5)


class Machine:
    """A clock of its own, on which a call of a model takes a second per parameter, times how busy the machine is."""

    def __init__(self) -> None:
        self.now, self.busy = 0.0, 1.0

    def perf_counter(self) -> float:
        return self.now

    def load(self, model: nn.Module, examples: Any, *, runtime: str) -> Callable[[], Any]:
        seconds = float(sum(parameter.numel() for parameter in model.parameters()))

        def call() -> None:
            self.now += seconds * self.busy
            self.busy *= 1.02  # ever slower

        return call


def test_a_machine_that_slows_down_slows_both(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine()
    monkeypatch.setattr(latency, "runtime_call", machine.load)
    monkeypatch.setattr(timing, "time", machine)
    clock = RuntimeClock(((torch.zeros(1),), {}))
    whole = clock(nn.Linear(8, 8, bias=False))
    assert clock(nn.Linear(4, 8, bias=False)) / whole == pytest.approx(1 / 2, rel=0.03)
    assert clock(nn.Linear(2, 8, bias=False)) / whole == pytest.approx(1 / 4, rel=0.03)


def test_noise_does_not_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)

    def seconds(model: nn.Module) -> float:
        noise = 1 + 0.3 * float(torch.rand((), generator=generator))
        return noise * sum(parameter.numel() for parameter in model.parameters())

    smodel = SparseModel(residual(), LATENCY, torch.zeros(1, 3, 8, 8, dtype=torch.float64))
    smodel.calc_params(latency=seconds)
    report = smodel.report()
    assert report.reached is not None and report.reached.met
    assert 0.2 < report.params_after / report.params_before < 0.65


def test_without_the_runtime_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    smodel = SparseModel(residual().float(), LATENCY, torch.zeros(1, 3, 8, 8))
    with pytest.raises(
        SparsebitError, match=r"measured in onnxruntime.*'onnxruntime'[\s\S]*\[onnx\].*latency="
    ):
        smodel.calc_params()


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_runtimes_can_be_asked_for_the_time(chain: nn.Module, images: list[Tensor], runtime: str) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip(runtime)
    qmodel = QuantModel(
        chain, parse_qconfig(f"int8_{runtime}", ["DEVICE=cpu", *FAST]), example_inputs=(images[0],)
    )
    qmodel.calibrate(images, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    assert 0 < runtime_latency(qmodel, (images[0],), runtime=runtime, rounds=3) < 1


def test_a_model_in_bfloat16_has_no_time_on_a_cpu() -> None:
    half = torch.zeros(1, 4, dtype=torch.bfloat16)
    with pytest.raises(SparsebitError, match="bfloat16 models cannot be exported"):
        runtime_latency(capture(nn.Linear(4, 4).bfloat16().eval(), half), (half,))


def test_a_clock_without_inputs_says_who_asked_and_what_to_give() -> None:
    clock = RuntimeClock((), where="SPARSER.TARGET latency")
    with pytest.raises(
        SparsebitError, match=r"none are known(.|\n)*SPARSER.TARGET latency(.|\n)*example_inputs"
    ):
        clock(nn.Linear(2, 2))
