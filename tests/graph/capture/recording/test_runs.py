"""What a recorded graph could get wrong without a word: it is told, refused, or right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture import capture


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        out, top = torch.zeros_like(x), x.argmax(1)
        for index, expert in enumerate(self.experts):
            rows = torch.where(top == index)[0]
            if rows.shape[0] == 0:
                continue
            out[rows] = expert(x[rows])
        return out


def test_a_branch_on_a_number_of_rows_that_the_data_decide_is_refused() -> None:
    with pytest.raises(CaptureError, match="depends on its input data: a branch on a size") as error:
        capture(Routed().eval(), torch.eye(3)[:2] * 5)
    assert "rows.shape[0] == 0" in str(error.value.where)


class Carries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.state = nn.GRUCell(2, 3), torch.zeros(1, 3)
        self.limit = float("nan")  # which differs from itself

    def forward(self, x: Tensor) -> Tensor:
        self.state = self.cell(x, self.state)
        return self.state


def test_state_that_is_carried_from_call_to_call_is_told() -> None:
    with pytest.warns(SpecializationWarning, match="keeps 'Carries.state' from call to call"):
        graph = capture(Carries(), torch.randn(1, 2))
    assert len(graph.capture_report.of_kind("state")) == 1


class Renormalised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.fc.weight.data = torch.renorm(self.fc.weight.data, 2, 0, 0.1)
        return self.fc(x)


def test_assigning_to_the_data_of_a_parameter_is_a_write_and_is_undone_after_the_recording() -> None:
    model, x = Renormalised(), torch.randn(2, 4)
    before = model.fc.weight.detach().clone()
    graph = capture(model, x)
    assert torch.equal(model.fc.weight, before)
    expected = torch.nn.functional.linear(x, torch.renorm(before, 2, 0, 0.1), model.fc.bias)
    assert torch.allclose(graph(x), expected)


def test_a_detached_activation_stays_detached() -> None:
    class Detaches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x)
            hidden.detach_()
            return self.second(hidden)

    graph = capture(Detaches(), torch.randn(3, 2))
    graph(torch.randn(3, 2)).sum().backward()
    gradients = {name: parameter.grad is not None for name, parameter in graph.named_parameters()}
    assert gradients == {
        "first.weight": False,
        "first.bias": False,
        "second.weight": True,
        "second.bias": True,
    }


def test_a_transformer_encoder_with_a_mask_as_input_is_captured() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    mask = torch.triu(torch.full((5, 5), float("-inf")), 1)
    graph = capture(model, (torch.randn(2, 5, 8),), {"mask": mask})
    x = torch.randn(3, 5, 8)
    for other in (mask, torch.zeros(5, 5)):
        assert torch.allclose(graph(x, mask=other), model(x, mask=other), atol=1e-6)


def test_types_are_what_they_are_while_a_model_is_recorded() -> None:
    class Pads(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            width = 3
            pair = (width, width) if type(width) is int else width
            return torch.nn.functional.pad(x, pair) if isinstance(pair, tuple) else x * 0

    x = torch.randn(2, 4)
    assert torch.equal(capture(Pads(), x)(x), Pads()(x))


def test_a_model_on_the_meta_device_is_told_to_be_loaded() -> None:
    with pytest.raises(CaptureError, match=r"on the meta device, without values; build it on a real device"):
        capture(nn.Linear(2, 2, device="meta"), torch.zeros(1, 2))


def test_another_rank_or_kind_of_input_is_refused() -> None:
    graph = capture(nn.Sequential(nn.ReLU()), torch.randn(2, 3, 4))
    with pytest.raises(CaptureError, match="expected: a 3-dimensional floating-point tensor"):
        graph(torch.randn(3, 4))
    with pytest.raises(CaptureError, match=r"got: *a 3-dimensional integer tensor"):
        graph(torch.ones(2, 3, 4, dtype=torch.long))
    with pytest.raises(CaptureError, match=r"got: *a 3-dimensional complex tensor"):
        graph(torch.ones(2, 3, 4, dtype=torch.complex64))


@pytest.mark.parametrize("what", ["gradients", "autocast", "random"])
def test_tracing_without_inputs_refuses_what_it_cannot_see(what: str) -> None:
    class Unseen(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if what == "gradients":
                with torch.no_grad():
                    return x * 2
            if what == "autocast":
                with torch.autocast("cpu", enabled=False):
                    return x * 2
            return x + torch.randn(3)

    with pytest.raises(CaptureError, match="tracing without inputs cannot see"):
        capture(Unseen())


def test_a_node_of_a_model_of_torch_modules_has_no_foreign_line() -> None:
    graph = capture(nn.Sequential(nn.Linear(2, 2)), torch.randn(1, 2))
    assert all(node.meta.get("source") is None for node in graph.graph.nodes)
