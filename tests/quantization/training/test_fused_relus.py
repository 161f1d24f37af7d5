"""ReLUs inside the kernels of quantizers: the same step as with ReLUs of their own."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import CaptureError
from sparsebit.numerics.snapping import snap_tensor
from sparsebit.quantization import QuantModel
from sparsebit.quantization.quantizers import base, prepared_kernels
from sparsebit.quantization.training import fused_relus
from sparsebit.quantization.training.fused_relus import find_pairs
from tests.quantization.nets import config, images, residual


def qat_model(kind: str = "lsq", net: nn.Module | None = None) -> QuantModel:
    weights = "uniform" if kind == "pact" else kind
    settings = config(W__QUANTIZER__TYPE=weights, A__QUANTIZER__TYPE=kind)
    qmodel = QuantModel(residual() if net is None else net, settings, images())
    qmodel.calibrate([images()], progress=False)
    qmodel.init_QAT(batch_norm="freeze")
    return qmodel.train()


def step(qmodel: QuantModel, x: Tensor) -> list[Tensor]:
    """Outputs and gradients."""
    qmodel.zero_grad()
    torch.manual_seed(0)  # of dropout
    y = qmodel(x)
    y.square().mean().backward()
    return [y.detach(), *(p.grad for p in qmodel.parameters() if p.grad is not None)]


@pytest.mark.parametrize("kind", ["lsq", "uniform", "lsq+", "pact"])
@pytest.mark.parametrize("with_kernels", [False, True])
def test_a_step_is_that_with_relus_of_their_own(
    kind: str, with_kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rectified: list[str] = []

    def kernels_for(x: Tensor, scale: Tensor, zero_point: Tensor, *settings: Any) -> Any:
        code, layout, magnitude, rectify = settings

        def snap(x: Tensor, scale: Tensor, zero_point: Tensor, factor: float) -> Tensor:
            rectified.extend(["once"] * rectify)
            given = x.relu() if rectify else x
            return snap_tensor(given, scale, zero_point, code, layout, factor, magnitude=magnitude)

        return snap

    qmodel = qat_model(kind)
    expected = step(qmodel, images())
    pairs = find_pairs(qmodel.model)
    assert pairs
    monkeypatch.setattr(fused_relus, "AVAILABLE", True)
    monkeypatch.setattr(fused_relus, "runs_kernels", lambda quantizer: True)
    if with_kernels:
        monkeypatch.setattr(prepared_kernels, "kernels_for", kernels_for)
        monkeypatch.setattr(prepared_kernels, "snap_with", lambda kernels, *arguments: kernels(*arguments))
        monkeypatch.setattr(base, "kernels_run_on", lambda x: True)
    found = step(qmodel, images())
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True)) and "forward" not in vars(
        qmodel.model
    )
    held = kind in ("lsq", "uniform")  # the others compute their grid, or prepare the tensor, in the forward
    assert len(rectified) == len(pairs) * (with_kernels and held)


def test_relus_are_left_out_only_where_kernels_run_and_nobody_watches_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 3))
    qmodel = qat_model(net=net)
    seen: list[str] = []
    monkeypatch.setattr(fused_relus, "AVAILABLE", True)

    def relu(self: nn.ReLU, x: Tensor) -> Tensor:
        seen.append("relu")
        return F.relu(x)

    monkeypatch.setattr(nn.ReLU, "forward", relu)
    qmodel(images())
    assert seen == ["relu"]
    monkeypatch.setattr(fused_relus, "runs_kernels", lambda quantizer: True)
    qmodel(images())
    assert seen == ["relu"]
    twin = copy.deepcopy(qmodel)
    assert twin(images()).equal(qmodel(images())) and seen == ["relu"]
    with pytest.raises(CaptureError, match="has size 4 in dimension 1"):
        qmodel(torch.randn(2, 4, 8, 8))
    assert "forward" not in vars(qmodel.model)
    (module,) = (module for module in qmodel.modules() if isinstance(module, nn.ReLU))
    handle = module.register_forward_hook(lambda *_: seen.append("hook"))
    qmodel(images())
    assert seen == ["relu", "relu", "hook"]
    handle.remove()
    qmodel.model.graph.eliminate_dead_code()
    qmodel.model.recompile()  # other code is written for it
    qmodel(images())
    assert seen == ["relu", "relu", "hook"]


class Others(nn.Module):
    """ReLUs that have to stay: of the input, beside another reader, before two, and of six."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        a = self.convs[0](F.relu(x))
        b = self.convs[1](F.relu(a)) + a
        c = F.relu(b)
        d = self.convs[2](c).sum(1, keepdim=True) + c.exp()
        y: Tensor = self.convs[3](F.relu6(d))
        return y


def test_relus_that_others_need_stay() -> None:
    graph = qat_model(net=Others().eval()).model
    relus = [node for node in graph.graph.nodes if "relu" in node.name and "quantizer" not in node.name]
    assert len(relus) == 4 and not find_pairs(graph)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["lsq", "uniform"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_on_a_gpu_has_the_same_bits(
    kind: str, memory_format: torch.memory_format, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    qmodel = qat_model(kind).to("cuda", dtype)
    x = images(16).to("cuda", dtype).contiguous(memory_format=memory_format)
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False):
        found = step(qmodel, x)
        monkeypatch.setattr(fused_relus, "runs_kernels", lambda quantizer: False)
        expected = step(qmodel, x)
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))
