"""Errors per operator against a run of the whole model, and against one operator by itself."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.graph.run import run_graph
from sparsebit.quantization import QuantModel
from tests.quantization.nets import config, images, quantized, residual


def values(qmodel: QuantModel, x: Tensor, on: bool) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    qmodel.set_quant(w_quant=on, a_quant=on)
    with torch.no_grad():
        run_graph(qmodel.model, (x,), watch=lambda node, value: found.update({node.name: value}))
    return {name: value.clone() for name, value in found.items() if isinstance(value, Tensor)}


def test_gathered_errors_are_those_of_the_whole_model() -> None:
    x = images(seed=5)
    qmodel = quantized()
    gathered = qmodel.get_quantization_error(x, is_async=False)
    exact, rounded = values(qmodel, x, on=False), values(qmodel, x, on=True)
    assert set(gathered) == {"conv1", "conv2", "adaptive_avg_pool2d", "fc"}
    for name, error in gathered.items():
        torch.testing.assert_close(error, F.mse_loss(exact[name], rounded[name]))


def test_errors_alone_are_those_of_one_operator() -> None:
    x = images(seed=5)
    qmodel = quantized()
    alone = qmodel.get_quantization_error(x, is_async=True)
    exact = values(qmodel, x, on=False)
    q = qmodel.quantizers
    conv2 = qmodel.model.conv2
    for name, got in {
        "conv1": F.conv2d(
            q["x"].snap(x),
            q["conv1.weight"].snap(qmodel.model.conv1.weight),
            qmodel.model.conv1.bias,
            padding=1,
        ),
        "conv2": F.conv2d(
            q["relu"].snap(exact["relu"]), q["conv2.weight"].snap(conv2.weight), conv2.bias, padding=1
        ),
        "adaptive_avg_pool2d": F.adaptive_avg_pool2d(q["relu_1"].snap(exact["relu_1"]), 1).amax((2, 3), True),
    }.items():
        if name != "adaptive_avg_pool2d":
            torch.testing.assert_close(alone[name], F.mse_loss(got, exact[name]))
    flat = exact["adaptive_avg_pool2d"].flatten(1)
    fc = qmodel.model.fc
    reads = q["adaptive_avg_pool2d"].snap(flat)
    got = F.linear(reads, q["fc.weight"].snap(fc.weight), fc.bias)
    torch.testing.assert_close(alone["fc"], F.mse_loss(got, exact["fc"]))


def test_a_checker_of_ones_own_gets_the_float_result_first() -> None:
    qmodel, x = quantized(), images(seed=5)
    pairs = qmodel.get_quantization_error(x, checker=lambda exact, rounded: (exact, rounded))
    exact = values(qmodel, x, on=False)
    assert torch.equal(pairs["fc"][0], exact["fc"]) and not torch.equal(*pairs["fc"])


def test_measuring_changes_nothing() -> None:
    qmodel = quantized()
    qmodel.train()
    before = {name: value.clone() for name, value in qmodel.state_dict().items()}
    switches = {name: q.use_quant for name, q in qmodel.quantizers.items()}
    qmodel.get_quantization_error(images())
    assert qmodel.training and qmodel.model.training
    assert {name: q.use_quant for name, q in qmodel.quantizers.items()} == switches
    assert all(torch.equal(before[name], value) for name, value in qmodel.state_dict().items())


def test_weights_alone_are_measured_too() -> None:
    qmodel = quantized(residual(), config(A__QUANTIZER__BIT=0))
    errors = qmodel.get_quantization_error(images())
    assert set(errors) == {"conv1", "conv2", "fc"} and all(error > 0 for error in errors.values())


def test_a_module_called_twice_is_reported_twice() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.fc(torch.exp(self.fc(x)))
            return y

    x = torch.randn(3, 4)
    errors = quantized(Twice().eval(), None, x).get_quantization_error(x, is_async=False)
    assert set(errors) == {"fc", "fc_1"} and errors["fc"] != errors["fc_1"]


def test_a_model_that_counts_its_calls_is_put_back() -> None:
    class Counter(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y: Tensor = self.fc(x) * self.calls
            return y

    x = torch.randn(3, 4)
    qmodel = quantized(Counter().eval(), None, x)
    calls = qmodel.model.calls.clone()
    exact = qmodel.get_quantization_error(x, checker=lambda exact, _: exact)["fc"]
    assert torch.equal(qmodel.model.calls, calls)
    torch.testing.assert_close(exact, F.linear(x, qmodel.model.fc.weight, qmodel.model.fc.bias))
