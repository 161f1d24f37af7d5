"""What a recording puts aside is put back, whatever happens and whoever else is at work."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import capture
from sparsebit.graph.capture.recording.patching import announcing_capture

X = torch.randn(3, 4)


def patched() -> dict[str, Any]:
    """Everything a recording replaces."""
    return {
        "module call": nn.Module.__call__,
        "apply": vars(torch.autograd.Function)["apply"],
        "enter": torch.autocast.__enter__,
        "exit": torch.autocast.__exit__,
        "script": torch.jit.ScriptFunction.__call__,
        "compiling": torch.compiler.is_compiling,
        "exporting": torch.compiler.is_exporting,
        "names": {
            name: value
            for name, value in globals().items()
            if name in ("int", "float", "len", "range", "max", "math")
        },
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "modes": torch.overrides._get_current_function_mode_stack(),
    }


@pytest.fixture(autouse=True)
def unpatched() -> Iterator[None]:
    """Every test ends as it began; one that does not must not spoil the others."""
    before = patched()
    yield
    after = patched()
    nn.Module.__call__ = before["module call"]  # type: ignore[method-assign]
    torch.autograd.Function.apply = before["apply"]  # type: ignore[method-assign]
    torch.autocast.__enter__ = before["enter"]  # type: ignore[method-assign]
    torch.autocast.__exit__ = before["exit"]  # type: ignore[method-assign]
    torch.jit.ScriptFunction.__call__ = before["script"]  # type: ignore[method-assign]
    torch.compiler.is_compiling, torch.compiler.is_exporting = before["compiling"], before["exporting"]
    assert {name for name in before if before[name] != after[name]} == set()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        return grad * 7


class Everything(nn.Module):
    """Goes through all that is patched, and then does what it is told."""

    def __init__(self, finally_do: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.leaf = nn.Linear(4, 4)
        self.leaf.register_forward_hook(lambda module, args, output: output * 1)
        self.finally_do = finally_do

    def forward(self, x: Tensor) -> Tensor:
        x = Twice.apply(self.leaf(x)) * len(x) + float(x.size(0))
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return self.finally_do(x)


def fail(error: BaseException) -> Callable[[Tensor], Tensor]:
    def do(x: Tensor) -> Tensor:
        raise error

    return do


def test_a_recording_leaves_torch_as_it_was() -> None:
    model = Everything(lambda x: x + 1)
    graph = capture(model, X)
    assert torch.equal(graph(X), model(X)) and "forward" not in vars(model.leaf)


@pytest.mark.parametrize("error", [ValueError("bad"), KeyboardInterrupt(), SystemExit(), GeneratorExit()])
def test_an_error_in_the_model_leaves_torch_as_it_was(error: BaseException) -> None:
    model = Everything(fail(error))
    with pytest.raises((CaptureError, KeyboardInterrupt, SystemExit, GeneratorExit)):
        capture(model, X)
    assert "forward" not in vars(model.leaf) and len(model.leaf._forward_hooks) == 1


def test_a_refusal_leaves_torch_as_it_was() -> None:
    with pytest.raises(CaptureError, match="depends on its input data"):
        capture(Everything(lambda x: x if x.sum() > 0 else -x), X)


def test_an_error_in_an_operator_leaves_torch_as_it_was() -> None:
    with pytest.raises(CaptureError):
        capture(Everything(lambda x: x @ x), X)


def test_two_captures_at_once_leave_torch_as_it_was() -> None:
    before, recording = patched(), threading.Event()

    def slow(x: Tensor) -> Tensor:
        recording.set()
        time.sleep(0.1)
        return x

    def work(model: nn.Module, wait: bool) -> None:
        if wait:
            recording.wait(60)
        graphs.append(capture(model, X))

    graphs: list[nn.Module] = []
    models = [Everything(slow), Everything(lambda x: x + 1)]
    threads = [threading.Thread(target=work, args=(model, index > 0)) for index, model in enumerate(models)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    after = patched()
    nn.Module.__call__ = before["module call"]  # type: ignore[method-assign]
    torch.autograd.Function.apply = before["apply"]  # type: ignore[method-assign]
    torch.autocast.__enter__, torch.autocast.__exit__ = before["enter"], before["exit"]  # type: ignore[method-assign]
    torch.jit.ScriptFunction.__call__ = before["script"]  # type: ignore[method-assign]
    assert len(graphs) == 2 and {name for name in before if before[name] != after[name]} == set()


def test_an_autograd_function_in_another_thread_is_not_recorded() -> None:
    started, finished, got = threading.Event(), threading.Event(), []

    def work() -> None:
        started.wait(60)
        with torch.autocast("cpu", torch.bfloat16):
            got.append(nn.Linear(4, 4)(Twice.apply(X)))
        finished.set()

    def waits(x: Tensor) -> Tensor:
        started.set()
        finished.wait(60)
        return x * 1

    thread = threading.Thread(target=work)
    thread.start()
    graph = capture(Everything(waits), X)
    thread.join()
    assert got[0].dtype is torch.bfloat16
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_module"] == ["leaf"]


def test_an_autograd_function_is_one_node_with_its_own_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Doubles())
    graph = capture(model, X)
    graph(X).sum().backward()
    got = model[0].weight.grad
    model.zero_grad()
    (model[0](X) * 7).sum().backward()
    assert torch.equal(got, model[0].weight.grad)


class Doubles(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Twice.apply(x)


def test_autocast_blocks_are_in_the_graph() -> None:
    def block(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ x.t()
            with torch.autocast("cpu", enabled=False):
                y = y.float() @ y.float()
            with torch.autocast("cpu", torch.float16):
                pass  # nothing happens inside: nothing is written down
        return y @ y

    model = Applies(block).eval()
    graph = capture(model, X)
    targets = [node.target for node in graph.graph.nodes]
    assert (
        targets.count(torch.amp.autocast_mode._enter_autocast)
        == targets.count(torch.amp.autocast_mode._exit_autocast)
        == 2
    )
    x = torch.randn(5, 4)
    assert torch.equal(graph(x), model(x)) and not torch.is_autocast_enabled("cpu")


class Applies(nn.Module):
    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.function(x)


def test_an_error_in_an_autocast_block_closes_it() -> None:
    def recovers(x: Tensor) -> Tensor:
        try:
            with torch.autocast("cpu", torch.bfloat16):
                x @ x.t()
                raise ValueError
        except ValueError:
            return x @ x.t()

    model = Applies(recovers)
    graph = capture(model, X)
    assert torch.equal(graph(X), model(X)) and graph(X).dtype is torch.float32


def test_a_model_is_told_that_it_is_captured_only_if_it_reads_its_data() -> None:
    asked: list[bool] = []

    def cautious(x: Tensor) -> Tensor:
        asked.append(torch.compiler.is_exporting())
        if not torch.compiler.is_exporting() and x.sum() > 1e9:
            return x
        return x * 2

    graph = capture(Applies(cautious), X)
    assert torch.equal(graph(X), X * 2) and asked[:2] == [False, True] and not torch.compiler.is_exporting()
    del asked[:]
    capture(Applies(lambda x: asked.append(torch.compiler.is_compiling()) or x * 2), X)
    assert not any(asked)


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_announcing_ends_with_its_block(error: type[BaseException] | None) -> None:
    try:
        with announcing_capture():
            assert torch.compiler.is_compiling() and torch.compiler.is_exporting()
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert not torch.compiler.is_compiling() and not torch.compiler.is_exporting()


def test_a_model_may_capture_another_inside() -> None:
    inner = nn.Sequential(nn.Linear(4, 4)).eval()
    model = Applies(lambda x: capture(inner, X)(x) * 2)
    graph = capture(model, X)
    assert torch.equal(graph(X), inner(X) * 2)


def test_this_file_sees_its_own_names() -> None:
    assert "math" not in vars(sys.modules[__name__]) and len([1, 2]) == 2
