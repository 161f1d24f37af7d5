"""Where a run is recorded: gradient modes, other threads, and what must not stay alive afterwards."""

from __future__ import annotations

import gc
import threading
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import capture
from tests.graph.capture.recording.applies import Applies, Result, calls_of, net

X = torch.randn(3, 4)

# -- where capture is called -----------------------------------------------------------------------


@pytest.mark.parametrize("context", [torch.no_grad, torch.enable_grad, torch.inference_mode])
def test_the_grad_mode_around_capture_does_not_matter(context: Callable[[], Any]) -> None:
    model = net()
    with context():
        graph = capture(model, X)
        assert torch.is_inference_mode_enabled() is (context is torch.inference_mode)
    graph(X).sum().backward()
    assert model[0].weight.grad is not None and torch.equal(graph(X), model(X))


def writes(y: Tensor) -> Tensor:
    y = y * 1
    y[:, 0] = 0
    return y + 1


@pytest.mark.parametrize("function", [writes, lambda y: (y.relu_(), y)[1]])
def test_writes_are_seen_in_inference_mode_too(function: Callable[[Tensor], Tensor]) -> None:
    model = Applies(function).eval()
    with torch.inference_mode():
        graph = capture(model, X)
    assert torch.equal(graph(X), model(X))


@pytest.mark.xfail(strict=True, reason="tensors of inference mode count no versions, so writes are not seen")
def test_writes_are_seen_in_a_block_of_inference_mode() -> None:
    def frozen(y: Tensor) -> Tensor:
        with torch.inference_mode():
            z = writes(y)
        return y + z

    model = Applies(frozen).eval()
    with torch.no_grad():
        assert torch.equal(capture(model, X)(X), model(X))


def test_autocast_around_capture_does_not_get_into_the_graph() -> None:
    model = net()
    with torch.autocast("cpu", torch.bfloat16):
        graph = capture(model, X)
        assert torch.equal(graph(X), model(X)) and graph(X).dtype is torch.bfloat16
    assert graph(X).dtype is torch.float32 and torch.equal(graph(X), model(X))


def test_another_thread_may_run_models_meanwhile() -> None:
    entered, finished, other = threading.Event(), threading.Event(), net()
    got: list[Tensor] = []

    def work() -> None:
        entered.wait(60)
        got.append(other(X))
        finished.set()

    def waits(y: Tensor) -> Tensor:
        entered.set()
        finished.wait(60)
        return y * 2

    thread = threading.Thread(target=work)
    thread.start()
    graph = capture(Applies(waits), X)
    thread.join()
    assert torch.equal(got[0], other(X)) and calls_of(graph) == ["linear"]


def test_work_in_a_thread_of_the_model_is_recorded_or_told() -> None:
    class Threaded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(self.linear, x).result() * 2

    model = Threaded().eval()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            graph = capture(model, X)
        except CaptureError:
            return  # a refusal would do
    x = torch.randn(3, 4)
    assert told or torch.equal(graph(x), model(x))


def test_an_input_that_requires_a_gradient_still_does() -> None:
    class Asks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 if x.requires_grad else x * 3

    x = X.clone().requires_grad_()
    assert torch.equal(capture(Asks(), x)(x), x * 2)


def test_gradients_taken_inside_the_model_are_refused_with_their_line() -> None:
    def forces(y: Tensor) -> Tensor:
        y = y.detach().requires_grad_()
        return torch.autograd.grad(y.pow(2).sum(), y)[0]

    with pytest.raises(
        CaptureError, match="raised RuntimeError on the example inputs: element 0 of tensors"
    ) as error:
        capture(Applies(forces), X)
    assert "return torch.autograd.grad(y.pow(2).sum(), y)[0]" in str(error.value.where)


# -- what stays alive ------------------------------------------------------------------------------


def test_nothing_of_the_run_stays_alive() -> None:
    watched: list[weakref.ref[Any]] = []

    def watch(y: Tensor) -> dict[str, Any]:
        z = y.relu() + y
        parts = [z, z * 2, Result(z + 1)]
        watched.extend(weakref.ref(tensor) for tensor in (y, z, parts[1], parts[2].value))
        return {"parts": parts, "n": y.size(0)}

    x = torch.randn(3, 4)
    watched.append(weakref.ref(x))
    graph = capture(Applies(watch), x)
    del x
    gc.collect()
    assert len(watched) > 5 and [reference() for reference in watched] == [None] * len(watched)
    assert graph(X)["n"] == 3


class Cache:
    """A cache as language models have them: objects with tensors in a list of an object."""

    def __init__(self, tensor: Tensor) -> None:
        self.layers = [Result(tensor)]


def test_a_cache_does_not_stay_alive() -> None:
    watched: list[weakref.ref[Any]] = []

    class Decoder(nn.Module):
        def forward(self, cache: Cache) -> Cache:
            result = Cache(cache.layers[0].value * 2)
            watched.append(weakref.ref(result.layers[0].value))
            return result

    cache = Cache(torch.randn(3))
    watched.append(weakref.ref(cache.layers[0].value))
    graph = capture(Decoder(), (cache,))
    del cache
    gc.collect()
    assert torch.equal(graph(Cache(torch.ones(3))).layers[0].value, torch.full((3,), 2.0))
    assert all(reference() is None for reference in watched)
