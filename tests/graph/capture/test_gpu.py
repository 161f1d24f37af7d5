"""Captured graphs on a GPU: captured there, and moved there."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import capture
from tests.graph.capture.test_zoo_record import CAPTURED, FIXED
from tests.graph.capture.zoo_checks import Call, fresh, run, third_party_warnings_ignored
from tests.zoo import ZOO

pytestmark = [
    pytest.mark.gpu,
    # A graph that was moved reads recurrent weights one by one; only speed is lost, as after any edit of such a layer.
    pytest.mark.filterwarnings("ignore:RNN module weights are not part of single contiguous chunk"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; CI has none"),
]
# These build tensors on the CPU by name, so that eager itself cannot move.
CPU_ONLY: set[str] = set()


def on_gpu(call: Call) -> Call:
    moved: Any = pytree.tree_map(lambda v: v.cuda() if isinstance(v, torch.Tensor) else v, call)
    return moved


def close(left: list[torch.Tensor], right: list[torch.Tensor]) -> None:
    assert len(left) == len(right)
    for one, two in zip(left, right, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.fixture(autouse=True)
def deterministic() -> Any:
    matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn


@pytest.mark.parametrize("name", CAPTURED)
def test_on_a_gpu(name: str) -> None:
    entry = ZOO[name]
    try:
        eager = fresh(entry).cuda()
        calls = [on_gpu(entry.inputs(batch)) for batch in entry.batches[: 1 if name in FIXED else None]]
        expected = [run(eager, copy.deepcopy(call)) for call in calls]
        eager = fresh(entry).cuda()
    except Exception as error:
        pytest.skip(
            f"the model itself does not run on this device: {type(error).__name__}: {str(error)[:100]}"
        )
    with third_party_warnings_ignored():
        there = capture(fresh(entry).cuda(), *calls[0])
        moved = capture(fresh(entry), *entry.inputs(entry.batches[0])).cuda()
    if entry.random:
        return
    for number, (call, wanted) in enumerate(zip(calls, expected, strict=True)):
        close(run(moved, copy.deepcopy(call)), wanted)
        try:
            close(run(there, call), wanted)
        except CaptureError as error:
            # Sizes are tried on a copy on the CPU; what cannot be copied, or has hooks on the original, is fixed.
            assert number > 0 and "was not captured for" in str(error)
