"""What both engines are given, and the silence around them."""

from __future__ import annotations

import logging
import threading
import warnings

import pytest
import torch
from torch import Tensor, nn

from sparsebit import capture
from sparsebit.export.translate.flat_graph import FlatGraph
from sparsebit.export.translate.request import TranslationRequest, quietly


class Counter(nn.Module):
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x + self.count


@pytest.mark.parametrize("net", [Counter(), nn.Identity()], ids=["writes", "plain"])
def test_what_a_run_writes_is_put_back(net: nn.Module) -> None:
    x = torch.zeros(2)
    flat = FlatGraph(capture(net.eval(), x))
    request = TranslationRequest(flat, [x], ["x"], ["y"], [{}], 20, stateful=isinstance(net, Counter))
    results = []
    for _ in range(3):
        with request.state.undone(), torch.no_grad():
            results.append(flat(x)[0].clone())
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_warnings_and_logs_are_as_before_afterwards() -> None:
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    with pytest.raises(ValueError, match="inside"), quietly():
        assert logger.level == logging.ERROR
        warnings.warn("not shown", stacklevel=1)
        raise ValueError("inside")
    assert logger.level == before


def test_two_threads_that_export_take_turns() -> None:
    """What belongs to the process is what it was when both are done, not what the first one found in the second."""
    logger, printer = logging.getLogger("torch.onnx"), torch._C._jit_onnx_log
    before, entered, go_on = (logger.level, list(warnings.filters)), threading.Event(), threading.Event()

    def second() -> None:
        with quietly():
            entered.set()
            go_on.wait(5)

    thread = threading.Thread(target=second)
    with quietly():
        thread.start()
        assert not entered.wait(0.1)
    assert entered.wait(5)
    go_on.set()
    thread.join()
    assert (logger.level, warnings.filters) == before and torch._C._jit_onnx_log is printer
