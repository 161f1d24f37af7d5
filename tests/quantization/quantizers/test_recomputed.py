"""Large quantized activations are not kept for the backward pass, and gradients stay the same to the last bit."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from sparsebit.errors import SparsebitError
from sparsebit.numerics.snapping import snap_tensor
from sparsebit.quantization import QuantModel
from sparsebit.quantization.quantizers import base, prepared_kernels, recomputed
from sparsebit.quantization.training import fused_relus
from tests.quantization.nets import config


class PlainKernels:
    """Stands for the kernels of the GPU: the same results from the reference, which keeps its own tensors."""

    def __init__(self, code: Any, layout: Any, magnitude: bool, rectify: bool) -> None:
        self.settings, self.magnitude, self.rectify, self.snapped = (code, layout), magnitude, rectify, 0

    def snap(self, x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        self.snapped += 1
        x = x.relu() if self.rectify else x
        return snap_tensor(x, scale, zero_point, *self.settings, magnitude=self.magnitude)


MADE: list[PlainKernels] = []


@pytest.fixture(autouse=True)
def on_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, and with every activation counted as large."""
    monkeypatch.setattr(recomputed, "LARGE", 1)
    if request.node.get_closest_marker("gpu"):
        return
    MADE.clear()

    def kernels_for(x: Any, scale: Any, zero_point: Any, *settings: Any) -> PlainKernels:
        MADE.append(PlainKernels(*settings))
        return MADE[-1]

    def snap_with(
        kernels: PlainKernels, x: Tensor, scale: Tensor, zero_point: Tensor, factor: float
    ) -> Tensor:
        x = x.relu() if kernels.rectify else x
        return snap_tensor(x, scale, zero_point, *kernels.settings, factor, magnitude=kernels.magnitude)

    monkeypatch.setattr(base, "kernels_run_on", lambda x: not torch.compiler.is_compiling())
    monkeypatch.setattr(prepared_kernels, "kernels_for", kernels_for)
    monkeypatch.setattr(prepared_kernels, "snap_with", snap_with)


class TwoReaders(nn.Module):
    """One activation that two convolutions read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.left, self.right = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.left(x) + self.right(x)


def trained(kind: str = "lsq") -> tuple[QuantModel, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 12, 12)
    qmodel = QuantModel(
        TwoReaders(), config(W__QUANTIZER__TYPE=kind, A__QUANTIZER__TYPE=kind, A__QUANTIZER__BIT=4), x
    )
    qmodel.calibrate([x], progress=False)
    qmodel.init_QAT()
    return qmodel.train(), x


def gradients(qmodel: QuantModel, x: Tensor, call: Any = None) -> dict[str, Tensor]:
    qmodel.zero_grad()
    (qmodel if call is None else call)(x).square().sum().backward()
    return {name: p.grad.clone() for name, p in qmodel.named_parameters() if p.grad is not None}


def activation_snaps() -> int:
    return sum(kernels.snapped for kernels in MADE)


@pytest.mark.parametrize("kind", ["lsq", "uniform"])
@pytest.mark.parametrize("fused", [False, True])
def test_gradients_are_equal_and_both_readers_compute_it_again(
    kind: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    qmodel, x = trained(kind)
    monkeypatch.setattr(fused_relus, "AVAILABLE", True)
    monkeypatch.setattr(fused_relus, "runs_kernels", lambda quantizer: fused)
    found = gradients(qmodel, x)
    assert any(kernels.rectify for kernels in MADE) == fused
    monkeypatch.setattr(fused_relus, "runs_kernels", lambda quantizer: False)
    assert activation_snaps() == (3 if kind == "lsq" else 2)  # the input has a gradient to its scale alone
    monkeypatch.setattr(recomputed, "LARGE", 2**60)
    expected = gradients(qmodel, x)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)


def test_the_quantized_activation_is_freed_after_the_forward_pass() -> None:
    qmodel, x = trained()
    quantizer = next(q for q in qmodel.quantizers.values() if q.side == "A" and "relu" in q.name)
    made: list[weakref.ref[Tensor]] = []
    quantizer.register_forward_hook(lambda module, args, y: made.append(weakref.ref(y)))
    loss = qmodel(x).square().sum()
    assert made[0]() is None and recomputed._recipes == {}
    loss.backward()


def test_a_scale_or_an_activation_that_changed_is_refused() -> None:
    qmodel, x = trained()
    loss = qmodel(x).square().sum()
    with torch.no_grad():
        for quantizer in qmodel.quantizers.values():
            quantizer.scale.mul_(2)
    with pytest.raises(
        (SparsebitError, RuntimeError), match=r"changed after the forward pass|inplace operation"
    ):
        loss.backward()
    kept = recomputed.Kept.of(y := torch.ones(2))
    y.add_(1)
    with pytest.raises(
        SparsebitError,
        match=r"(?s)a tensor that the backward pass needs was changed after the forward pass"
        r".*next: *call backward\(\) before optimizer.step\(\)",
    ):
        kept.get()


def test_a_new_grid_leaves_the_one_of_the_forward_pass() -> None:
    qmodel, x = trained("uniform")
    expected = gradients(qmodel, x)
    qmodel.zero_grad()
    loss = qmodel(x).square().sum()
    for quantizer in qmodel.quantizers.values():
        if quantizer.side == "A":
            quantizer.set_grid(quantizer.scale * 2, quantizer.zero_point)
    loss.backward()
    assert all(torch.equal(p.grad, expected[n]) for n, p in qmodel.named_parameters() if p.grad is not None)


def test_hooks_of_others_come_first() -> None:
    qmodel, x = trained()
    expected = gradients(qmodel, x)
    before = activation_snaps()
    found = gradients(qmodel, x, lambda x: checkpoint(qmodel, x, use_reentrant=False))
    assert activation_snaps() == before
    assert all(torch.allclose(found[name], expected[name]) for name in expected)
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = qmodel(x).square().sum()
    assert sum(tensor.shape == (4, 8, 10, 10) for tensor in packed) >= 3  # both convolutions and the relu
    loss.backward()


def test_distributed_training_has_the_same_gradients() -> None:
    qmodel, x = trained()
    expected = gradients(qmodel, x)
    before = activation_snaps()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found = gradients(qmodel, x, DistributedDataParallel(qmodel))
    finally:
        dist.destroy_process_group()
    assert activation_snaps() == 2 * before
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_without_gradients_nothing_is_remembered() -> None:
    qmodel, x = trained()
    with torch.no_grad():
        qmodel(x)
    assert recomputed._recipes == {} and recomputed.recompute_input(x) is None


def test_a_compiled_model_is_left_to_its_compiler() -> None:
    qmodel, x = trained()
    expected = gradients(qmodel, x)
    before = activation_snaps()
    torch._dynamo.reset()
    found = gradients(qmodel, x, torch.compile(qmodel, backend="aot_eager", fullgraph=True))
    assert activation_snaps() == before
    assert all(torch.allclose(found[name], expected[name], rtol=1e-4, atol=1e-5) for name in expected)


@pytest.mark.gpu
def test_on_a_real_gpu_gradients_stay_and_less_memory_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    qmodel, _ = trained()
    qmodel.cuda()
    x = torch.randn(16, 3, 130, 130, device="cuda")
    found, held = [], []
    for large in (2**60, 1):
        monkeypatch.setattr(recomputed, "LARGE", large)
        gradients(qmodel, x)
        before = torch.cuda.memory_allocated()
        loss = qmodel(x).square().sum()
        held.append(torch.cuda.memory_allocated() - before)
        del loss
        found.append(gradients(qmodel, x))
    assert held[1] <= held[0] - 16 * 8 * 128 * 128 * 4
    for name, expected in found[0].items():  # convolutions may add up in another order
        torch.testing.assert_close(found[1][name], expected, rtol=1e-3, atol=1e-3)
