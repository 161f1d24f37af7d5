"""What a trace knows: names of shared tensors, families that vary, and what is pinned, frozen or balanced."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.capture import capture
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.trace import Trace, labels_in, tensors_of


def make_trace() -> Trace:
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4))
    net[1].weight = net[0].weight
    return Trace(capture(net, torch.zeros(2, 4)))


def test_a_shared_tensor_has_one_name_and_one_set_of_labels() -> None:
    trace = make_trace()
    assert sorted(tensors_of(trace.gm)) == ["0.weight", "1.bias", "1.weight"]
    assert trace.canonical("1.weight") == "0.weight"
    assert torch.equal(trace.axis("0.weight", 0, "output"), trace.axis("1.weight", 0, "output"))


def test_pinned_dims_go_together() -> None:
    trace = make_trace()
    value = Labels((2, 3), [Family((0, 1), trace.sets.fresh(6).reshape(2, 3))])
    (family,) = trace.pinned(value, [0], "why")
    assert family.dims == (1,) and trace.simple(value)[0].dims == (1,)
    assert trace.pinned(value, [1], "all of it") == [] and trace.notes[-1][1] == "all of it"


def test_labels_in_structures() -> None:
    one, two = Labels((1,)), Labels((2,))
    assert list(labels_in({"a": (one, None), "b": [two]})) == [one, two]
