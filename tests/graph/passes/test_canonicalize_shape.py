from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx
from torch.fx import GraphModule

from sparsebit.graph.passes.canonicalize_shape import canonicalize_shape
from tests.graph.passes.folding import annotate


def trace(forward: Callable[..., Any], *example: Tensor) -> GraphModule:
    gm = fx.symbolic_trace(forward)
    if example:
        annotate(gm, *example)
    return gm


def targets(gm: GraphModule) -> list[object]:
    return [node.target for node in gm.graph.nodes if node.op.startswith("call_")]


def sizes(gm: GraphModule) -> list[tuple[object, ...]]:
    return [node.args[1:] for node in gm.graph.nodes if node.target is torch.Tensor.size]


FORMS: list[Callable[[Tensor], Any]] = [
    lambda x: x.shape[1],
    lambda x: x.shape[-2],
    lambda x: x.size()[1],
    lambda x: x.size(1),
    lambda x: x.size(-2),
    lambda x: x.size(dim=1),
    lambda x: getattr(x, "shape")[1],  # noqa: B009
]


@pytest.mark.parametrize("form", FORMS)
def test_every_way_to_ask_for_one_size_is_one_node(form: Callable[[Tensor], Any]) -> None:
    x = torch.randn(2, 3, 4)
    gm = trace(lambda x: x.reshape(form(x), -1), x)
    canonicalize_shape(gm)
    assert sizes(gm) == [(1,)]
    assert len(targets(gm)) == 2
    size = next(node for node in gm.graph.nodes if node.target is torch.Tensor.size)
    assert size.meta["value"] == 3
    for batch in (2, 5):
        y = torch.randn(batch, 3, 4)
        assert torch.equal(gm(y), y.reshape(3, -1))


def test_without_the_rank_negative_dimensions_and_slices_stay_right() -> None:
    gm = trace(lambda x: x.reshape(x.shape[-1], -1).reshape(x.shape[:2] + (-1,)))  # noqa: RUF005
    assert canonicalize_shape(gm) == 2
    assert sizes(gm) == [(-1,), ()]
    x = torch.randn(2, 3, 4)
    assert torch.equal(gm(x), x.reshape(4, -1).reshape(2, 3, -1))


def test_the_same_size_is_asked_once() -> None:
    gm = trace(lambda x: x.reshape(x.shape[0], x.size(1) * x.shape[2]) + x.size(0), torch.randn(2, 3, 4))
    canonicalize_shape(gm)
    assert sizes(gm) == [(0,), (1,), (2,)]


def test_unpacking_slicing_and_joining_become_tuples() -> None:
    def forward(x: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = x.view(batch, length, 2, width // 2).transpose(1, 2)
        y = y.reshape(y.shape[:-2] + (-1,))  # noqa: RUF005
        y = y.expand(x.shape[:1] + y.size()[1:])
        return y.reshape(x.shape) + torch.zeros(x.size())

    x = torch.randn(2, 3, 4)
    gm = trace(forward, x)
    assert canonicalize_shape(gm) > 0
    assert getattr not in targets(gm)
    assert operator.getitem not in targets(gm)
    assert operator.add in targets(gm)  # of tensors; those of tuples are gone
    assert targets(gm).count(operator.add) == 1
    for shape in ((2, 3, 4), (5, 7, 6)):
        y = torch.randn(shape)
        assert torch.equal(gm(y), forward(y))


def test_a_second_run_changes_nothing() -> None:
    gm = trace(lambda x: x.view(x.shape[:1] + x.size()[1:]) * x.size(-1) + x.ndim, torch.randn(2, 3, 4))
    assert canonicalize_shape(gm) > 0
    assert canonicalize_shape(gm) == 0


def test_rank_and_number_of_elements() -> None:
    def forward(x: Tensor) -> Tensor:
        return x * x.ndim + x.dim() * x.numel() + x.shape.numel() + torch.numel(x)

    known, unknown, x = trace(forward, torch.randn(2, 3)), trace(forward), torch.randn(4, 3)
    for gm in (known, unknown):
        canonicalize_shape(gm)
        assert torch.equal(gm(x), forward(x))
        assert getattr not in targets(gm)
        assert targets(gm).count(torch.Tensor.numel) == 3
    assert torch.Tensor.dim not in targets(known)
    assert torch.Tensor.dim in targets(unknown)


def test_a_shape_that_leaves_the_graph_stays_a_shape() -> None:
    gm = trace(lambda x: (x.relu(), x.shape), torch.randn(2, 3))
    canonicalize_shape(gm)
    assert sizes(gm) == [()]
    assert gm(torch.randn(4, 3))[1] == torch.Size([4, 3])
    assert isinstance(gm(torch.randn(4, 3))[1], torch.Size)


def test_a_shape_that_an_unknown_function_reads_stays_a_shape() -> None:
    def area(shape: torch.Size) -> int:
        return shape.numel()

    graph = fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(area, (graph.call_function(getattr, (x, "shape")),)))
    gm = GraphModule(torch.nn.Module(), graph)
    annotate(gm, torch.zeros(2, 3))
    canonicalize_shape(gm)
    assert gm(torch.zeros(4, 3)) == 12


def test_a_computed_index_stays() -> None:
    gm = trace(lambda x, i: x.shape[i], torch.randn(2, 3), torch.tensor(1))
    canonicalize_shape(gm)
    assert targets(gm) == [torch.Tensor.size, operator.getitem]
    assert gm(torch.randn(4, 3), 1) == 3


def test_a_tensor_that_changes_its_shape_is_asked_again() -> None:
    def forward(x: Tensor) -> Tensor:
        y = x * 1
        before = y.size(0)
        y.unsqueeze_(0)
        return x * before + y.size(0)

    gm, x = trace(forward, torch.randn(2, 3)), torch.randn(4, 3)
    canonicalize_shape(gm)
    assert sizes(gm) == [(0,), (0,)]
    assert torch.equal(gm(x), forward(x))


def test_other_attributes_stay() -> None:
    gm, x = trace(lambda x: torch.zeros(3, dtype=x.dtype) + x.T, torch.randn(3, 2)), torch.randn(3, 2)
    assert canonicalize_shape(gm) == 0
    assert torch.equal(gm(x), x.T)


def test_what_was_known_about_the_place_is_kept() -> None:
    gm = trace(lambda x: x.reshape(x.shape[0], -1), torch.randn(2, 3))
    getitem = next(node for node in gm.graph.nodes if node.target is operator.getitem)
    getitem.meta |= {"module_path": "body", "source": ("net.py", 7, "forward")}
    canonicalize_shape(gm)
    size = next(node for node in gm.graph.nodes if node.target is torch.Tensor.size)
    assert (size.meta["module_path"], size.meta["source"]) == ("body", ("net.py", 7, "forward"))


@given(st.slices(4), st.integers(-4, 3), st.booleans())
def test_parts_of_shapes_are_what_python_says(part: slice, index: int, known: bool) -> None:
    x = torch.zeros(2, 3, 5, 7)

    def forward(x: Tensor) -> Any:
        return torch.zeros(x.shape[part] + (x.shape[index],))

    gm = trace(forward, x) if known else trace(forward)
    canonicalize_shape(gm)
    assert gm(x).shape == forward(x).shape
