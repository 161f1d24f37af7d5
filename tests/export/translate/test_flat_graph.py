"""A captured graph as exporters like it: the same tensors, positional, under the user's names."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit import capture
from sparsebit.export import ExportError
from sparsebit.export.translate.flat_graph import FlatGraph, example_leaves, original_name


class Structured(nn.Module):
    """Inputs and outputs in a dict, a buffer with a name that a graph module has, and a number among the results."""

    code: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4))
        self.register_buffer("code", torch.ones(4))

    def forward(self, given: dict[str, Tensor]) -> dict[str, Any]:
        return {"sum": self.inner(given["a"]) + given["b"] * self.code, "rank": 2}


def test_it_computes_the_same_and_shares_every_parameter() -> None:
    net, a, b = Structured().eval(), torch.randn(2, 4), torch.randn(2, 4)
    flat = FlatGraph(capture(net, {"given": {"a": a, "b": b}})).eval()
    (result,) = flat(a, b)
    assert torch.equal(result, net({"a": a, "b": b})["sum"]) and len(flat.input_names) == 2
    held = {original_name(name): tensor for name, tensor in flat.state_dict().items()}
    assert held.keys() == {"inner.0.weight", "inner.0.bias", "code"}
    assert all(held[name].data_ptr() == tensor.data_ptr() for name, tensor in net.state_dict().items())


def test_an_input_has_the_name_of_its_argument() -> None:
    class Builtins(nn.Module):
        def forward(self, input: Tensor, input_1: Tensor, max: Tensor) -> Tensor:
            return input + input_1 + max

    x = torch.zeros(2)
    assert FlatGraph(capture(nn.Linear(2, 2), x)).input_names == ["input"]
    assert FlatGraph(capture(nn.Linear(2, 2))).input_names == ["input"]
    assert FlatGraph(capture(Builtins(), (x, x, x))).input_names == ["input", "input_1", "max"]

    class Numbered(nn.Module):
        def forward(self, input_1: Tensor, input: Tensor | None = None) -> Tensor:
            return input_1 + 1

    assert FlatGraph(capture(Numbered(), x)).input_names == ["input_1"]

    class Pair(nn.Module):
        def forward(self, input: tuple[Tensor, Tensor], id_1: Tensor) -> Tensor:
            return input[0] + input[1] + id_1

    assert FlatGraph(capture(Pair(), ((x, x), x))).input_names == ["input_0", "input_1", "id_1"]


def test_a_failure_is_raised_and_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return x + y

    flat = FlatGraph(capture(Adds(), (torch.zeros(2), torch.zeros(2))))
    with pytest.raises(RuntimeError, match="size"):
        flat(torch.zeros(2), torch.zeros(3))
    assert capfd.readouterr() == ("", "")


def test_what_no_file_can_hold_is_refused() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> int:
            return len(x.shape)

    with pytest.raises(ExportError, match="returns no tensor"):
        FlatGraph(capture(Counts(), torch.zeros(2)))
    flat = FlatGraph(capture(nn.Linear(2, 2).eval(), torch.zeros(1, 2)))
    with pytest.raises(ExportError, match=r"only tensors can be inputs(.|\n)*input"):
        example_leaves(flat, [3], None)
    x = torch.zeros(1, 2)
    (copied,) = example_leaves(flat, [x], None)
    assert torch.equal(copied, x) and copied.data_ptr() != x.data_ptr()
