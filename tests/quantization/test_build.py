"""From a float model to a graph with quantizers."""

from __future__ import annotations

import pytest
import torch

from sparsebit.batches import Call
from sparsebit.errors import SparsebitError
from sparsebit.quantization import parse_qconfig
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
    with pytest.raises(SparsebitError, match="quantized already"):
        require_float_model(quantized().model)
