"""What the tests of folding share: models with telling numbers, and the check that nothing else changed."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from sparsebit.graph.capture import capture
from sparsebit.graph.passes.fold_batch_norm import fold_batch_norm, refusals
from sparsebit.graph.run import run_graph
from sparsebit.graph.value import describe


def stirred(model: nn.Module) -> nn.Module:
    """The model in float64 and eval mode, with numbers in its norms that a wrong fold would not survive."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            for tensor in (module.running_mean, module.weight, module.bias):
                if tensor is not None:
                    tensor.data.normal_()
            if module.running_var is not None:
                module.running_var.uniform_(0.5, 2)
    return model.double().eval()


def annotate(gm: GraphModule, *inputs: Tensor) -> None:
    """Note shape and dtype of every value, as capturing with example inputs does."""
    run_graph(gm, inputs, watch=lambda node, value: node.meta.setdefault("value", describe(value)))


def input_of(dims: int, channels: int = 4) -> Tensor:
    return torch.randn(2, channels, *[5] * dims, dtype=torch.float64)


def reasons(gm: GraphModule) -> list[str]:
    return [refusal.reason for refusal in refusals(gm)]


def check(model: nn.Module, *inputs: Tensor, folds: int = 1) -> GraphModule:
    """Capture, fold, and compare: outputs, what is left, and that the user's model is untouched."""
    before = copy.deepcopy(model.state_dict())
    gm = capture(model, inputs)
    assert fold_batch_norm(gm) == folds, reasons(gm)
    torch.testing.assert_close(gm(*inputs), model(*inputs), rtol=1e-9, atol=1e-9)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())
    gm.graph.lint()
    return gm
