"""A training step of ResNet-50 with fake-quantization, beside the float step: time and memory."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sparsebit
from benchmarks.gpu.fake_quant import PASSES
from sparsebit.numerics import snapping
from sparsebit.quantization.training import fused_relus

CONFIGS = {"lsq W4A4": ("lsq", 4), "uniform W8A8": ("uniform", 8)}


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and what they read added at the end (He et al., arXiv 1512.03385)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != 4 * width:
            conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        """The block."""
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet50(classes: int = 1000) -> nn.Sequential:
    """ResNet-50 with random weights."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
    ]  # fmt: skip
    inputs = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if block == 0 and stage else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def quantized(net: nn.Module, kind: str, bits: int, x: Tensor) -> sparsebit.QuantModel:
    """The network with learned or fixed grids, ready to train."""
    config = {
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": kind, "BIT": bits}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": kind, "BIT": bits}},
    }
    model = sparsebit.QuantModel(net, config, example_inputs=(x[:2],))
    model.calibrate([x[:8]], progress=False)
    model.init_QAT()
    return model.train()


def quantized_bytes(model: sparsebit.QuantModel, x: Tensor) -> int:
    """Bytes of everything that is quantized in a step; fake-quantization has to pass over them five times."""
    seen: list[int] = []
    handles = [
        quantizer.register_forward_pre_hook(lambda _, args: seen.append(args[0].nbytes))
        for quantizer in model.quantizers.values()
        if quantizer.is_enable
    ]
    try:
        with torch.no_grad():
            model(x)
    finally:
        for handle in handles:
            handle.remove()
    return sum(seen)


def make_step(
    model: nn.Module, call: Callable[..., Tensor], x: Tensor, labels: Tensor
) -> Callable[[], Tensor]:
    """One step of training with SGD and momentum."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9, foreach=True)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(call(x).float(), labels)
        loss.backward()
        optimizer.step()
        return loss

    return step


def measure(
    time_of: Callable[..., float],
    batch: int = 64,
    size: int = 224,
    compiled: bool = False,
    mode: str | None = None,
    formats: tuple[bool, ...] = (False, True),
    plain: bool = False,
    recorded: bool = False,
) -> Iterator[dict[str, Any]]:
    """Milliseconds and memory of a step in bfloat16, for each configuration and memory format.

    ``floor_bytes`` is the memory that fake-quantization has to move. The floor of a step is the float step and the time
    that this takes. With ``recorded``, forward and backward are CUDA graphs, by ``torch.cuda.make_graphed_callables``;
    the optimizer's step is not.
    """
    for channels_last in formats:
        memory_format = torch.channels_last if channels_last else torch.contiguous_format
        torch.manual_seed(0)
        net = resnet50().to("cuda", torch.bfloat16, memory_format=memory_format)
        x = torch.randn(batch, 3, size, size, device="cuda", dtype=torch.bfloat16)
        x = x.to(memory_format=memory_format)
        labels = torch.randint(1000, (batch,), device="cuda")
        # Statistics of batch norm, without which ranges would be those of another network.
        with torch.no_grad():
            for _ in range(30):
                net.train()(x)
        for name, fused in (
            ("float", True),
            *itertools.product(CONFIGS, (True,) if compiled else (True, False)),
        ):
            for kernels in (True, False) if name != "float" and plain else (True,):
                snapping.USE_KERNELS, fused_relus.USED = kernels, fused
                try:
                    model, moved = copy.deepcopy(net).train(), 0
                    if name != "float":
                        model = quantized(net, *CONFIGS[name], x)
                        moved = PASSES * quantized_bytes(model, x)
                    torch._dynamo.reset()
                    call = torch.compile(model, mode=mode) if compiled else model
                    call = torch.cuda.make_graphed_callables(model, (x,)) if recorded else call
                    step = make_step(model, call, x, labels)
                    step()
                    step()
                    before = torch.cuda.memory_allocated()
                    torch.cuda.reset_peak_memory_stats()
                    ms = time_of(step, repeats=10) / 1000
                    row = {
                        "model": name,
                        "kernels": kernels,
                        "fused_relus": fused,
                        "channels_last": channels_last,
                        "compiled": compiled,
                        "mode": mode,
                        "recorded": recorded,
                        "ms": ms,
                        "floor_bytes": moved,
                        "peak_mb": torch.cuda.max_memory_allocated() / 2**20,
                        "held_mb": before / 2**20,
                        "host_ms": host_ms(step),
                        "loss": float(step().detach()),
                    }
                finally:
                    snapping.USE_KERNELS = fused_relus.USED = True
                yield row
                del model, call, step
                torch.cuda.empty_cache()


def host_ms(step: Callable[[], Any], repeats: int = 5) -> float:
    """Milliseconds until a step is handed to the device, which then still works on it."""
    import time

    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    torch.cuda.synchronize()
    return 1000 * sorted(times)[repeats // 2]


def profile_host(x: Tensor, repeats: int = 200) -> dict[str, float]:
    """Microseconds of host time of the parts of one activation's quantizer, forward and backward."""
    import time

    from sparsebit.config import TensorSpec
    from sparsebit.quantization.quantizers import QUANTIZERS

    found = {}
    small = torch.randn(8, 8, 8, 8, device=x.device, dtype=x.dtype, requires_grad=True)

    def timed(name: str, function: Callable[[], Any]) -> None:
        for _ in range(20):
            function()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats):
            function()
        found[name] = (time.perf_counter() - start) / repeats * 1e6
        torch.cuda.synchronize()

    grad = torch.ones_like(small)
    for kind in ("lsq", "uniform"):
        spec = TensorSpec(bits=4, symmetric=False, granularity="tensor", quantizer=kind)
        quantizer = QUANTIZERS[kind]("it", "A", spec).cuda()
        quantizer.set_grid(torch.tensor([0.1], device=x.device), torch.tensor([8.0], device=x.device))
        quantizer.enable_quant()
        leaves = [small, quantizer.scale] if kind == "lsq" else [small]
        with torch.no_grad():
            timed(f"{kind} forward, no gradient", lambda q=quantizer: q(small))
        timed(f"{kind} forward", lambda q=quantizer: q(small))
        timed(f"{kind} both", lambda q=quantizer, to=leaves: torch.autograd.grad(q(small), to, grad))
    timed("relu forward", lambda: F.relu(small))
    timed("relu both", lambda: torch.autograd.grad(F.relu(small), small, grad))
    timed("empty_like", lambda: torch.empty_like(small))
    with torch.no_grad():
        timed("relu, no gradient", lambda: F.relu(small))
    return found
