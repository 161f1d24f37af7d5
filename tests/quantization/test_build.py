"""From a float model to a graph with quantizers, and which recovery steps it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.batches import Call
from sparsebit.errors import ConfigError, SparsebitError
from sparsebit.quantization import QuantModel, parse_qconfig
from sparsebit.quantization.algorithms import AdaRoundLayers, BiasCorrection, Brecq, Equalization
from sparsebit.quantization.build import build_graph, require_float_model
from sparsebit.quantization.quantizers import Quantizer
from tests.quantization.nets import config, images, quantized, residual


def test_the_graph_follows_a_plan_and_computes_what_the_model_computes() -> None:
    net, settings = residual(), parse_qconfig(config())
    built = build_graph(net, Call((images(),)), settings, None)
    again = build_graph(net, Call((images(),)), settings, built.plan)
    for each in (built, again):
        found = [module for module in each.graph.modules() if isinstance(module, Quantizer)]
        assert len(found) == len(built.plan.tensors) and set(each.batch_norms) >= {"conv1", "conv2"}
        torch.testing.assert_close(each.graph(images()), net(images()), rtol=1e-4, atol=1e-5)


def test_only_a_float_module_can_be_quantized() -> None:
    require_float_model(residual())
    program = torch.export.export(residual(), (images(),))
    with pytest.raises(SparsebitError, match=r"takes a torch.nn.Module(.|\n)*program.module\(\)"):
        require_float_model(program)
    with pytest.raises(
        SparsebitError, match=r"takes a torch.nn.Module(.|\n)*pass an object of the class: Linear"
    ):
        require_float_model(torch.nn.Linear)
    with pytest.raises(SparsebitError, match="quantized already"):
        require_float_model(quantized().model)


def steps(**changes: object) -> tuple[list[type], list[type]]:
    recovery = QuantModel(residual(), config(**changes), images()).recovery
    before, after = ([type(step) for step in recovery if step.stage == when] for when in ("before", "after"))
    return before, after


def test_steps_run_before_or_after_the_ranges_in_the_order_of_the_config() -> None:
    assert steps() == ([], [])
    asked = ["bias_correction", "equalization", "brecq"]
    assert steps(SCHEDULE__RECOVERY=asked) == ([Equalization], [BiasCorrection, Brecq])


def test_adaround_quantizers_bring_their_step() -> None:
    assert steps(W__QUANTIZER__TYPE="adaround") == ([], [AdaRoundLayers])
    assert steps(W__QUANTIZER__TYPE="adaround", SCHEDULE__RECOVERY=["brecq"]) == ([], [Brecq])


def test_wrong_options_are_found_before_any_work() -> None:
    with pytest.raises(ConfigError, match="brecq"):
        QuantModel(residual(), config(SCHEDULE__RECOVERY=[{"brecq": {"steps": 0}}]), images())


@pytest.mark.parametrize("wrong", [3, "plan", {}, torch.zeros(2)])
def test_a_plan_is_one_of_ours(wrong: Any) -> None:
    with pytest.raises(SparsebitError, match="plan must be a QuantPlan"):
        QuantModel(residual(), config(), images(), plan=wrong)


def test_a_model_with_nothing_to_quantize_is_told(caplog: pytest.LogCaptureFixture) -> None:
    QuantModel(nn.Tanh(), "int8_onnxruntime", images())
    assert "nothing in this model is quantized for onnxruntime" in caplog.text
