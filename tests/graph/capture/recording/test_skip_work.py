"""Costly layers give zeros of the right shape where only the program counts, and run where they might raise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from sparsebit.graph.capture import capture
from sparsebit.graph.capture.recording.skip_work import skip_work

IMAGE = torch.ones(2, 4, 9, 9)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (nn.Linear(4, 3), (torch.ones(2, 5, 4),)),
        (nn.Conv2d(4, 6, 3, stride=2), (IMAGE,)),
        (nn.Conv2d(4, 6, 3, padding="same", groups=2), (IMAGE,)),
        (nn.ConvTranspose2d(4, 6, 3, stride=2), (IMAGE,)),
        (nn.GELU(), (IMAGE,)),
        (F.softmax, (IMAGE, 1)),
        (torch.matmul, (torch.ones(2, 3, 4), torch.ones(2, 4, 5))),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)
def test_the_shape_dtype_and_layout_are_those_of_the_real_result(target: Any, args: tuple[Any, ...]) -> None:
    skipped, real = skip_work(target, args, {}), target(*args)
    assert skipped is not None and not skipped.any()
    assert (skipped.shape, skipped.dtype, skipped.stride()) == (real.shape, real.dtype, real.stride())


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).repeat(1, 2)


def hooked() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.register_forward_hook(lambda module, args, result: result.sum(-1))
    return layer


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (Doubled(4, 3), (torch.ones(2, 4),)),
        (hooked(), (torch.ones(2, 4),)),
        (nn.Linear(4, 3), (torch.ones(2, 5),)),
        (nn.Linear(4, 3), (torch.ones(2, 4, dtype=torch.float64),)),
        (nn.Linear(4, 3, device="meta"), (torch.ones(2, 4, device="meta"),)),
        (nn.Conv2d(4, 6, 3), (torch.ones(2, 5, 9, 9),)),
        (nn.Conv2d(4, 6, 3), (IMAGE.to(memory_format=torch.channels_last),)),
        (nn.BatchNorm2d(4), (IMAGE,)),
        (torch.matmul, (torch.ones(2, 3, 4), torch.ones(4, 5))),
        (torch.matmul, (torch.ones(3, 4), torch.ones(5, 4))),
        (torch.add, (IMAGE, IMAGE)),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)
def test_what_may_do_more_or_may_raise_is_run(target: Any, args: tuple[Any, ...]) -> None:
    assert skip_work(target, args, {}) is None


def test_autocast_is_run_for_its_dtype() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert skip_work(nn.Linear(4, 3), (torch.ones(2, 4),), {}) is None


class CountProducts(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.addmm.default, torch.ops.aten.convolution.default):
            self.count += result.device.type == "cpu"
        return result


def test_a_capture_computes_every_layer_once() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(24, 4), nn.Dropout(), nn.Linear(4, 2))
    with CountProducts() as products:
        graph = capture(model.eval(), torch.ones(1, 2, 9))
    assert [size.free for size in graph.capture_report.sizes] == [True, False, False]
    assert products.count == 3
