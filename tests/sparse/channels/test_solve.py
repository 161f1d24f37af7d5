"""Constraints between dims: what cannot be kept by choosing apart is tied, and frozen channels freeze their blocks."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.graph.capture import capture
from sparsebit.sparse.channels.labels import Family, Labels
from sparsebit.sparse.channels.solve import find_reasons, frozen_classes, live_blocks, solve
from sparsebit.sparse.channels.trace import Trace


def make_trace() -> Trace:
    return Trace(capture(nn.Linear(4, 4), torch.zeros(2, 4)))


def test_a_tensor_stays_a_box() -> None:
    trace = make_trace()
    table = trace.sets.fresh(6).reshape(2, 3)
    trace.values["node"] = Labels((2, 3), [Family((0, 1), table)])
    solve(trace)
    assert torch.equal(trace.roots[table][0], trace.roots[table][1])  # the same columns of every row


def test_a_frozen_channel_freezes_the_blocks_that_must_keep_up() -> None:
    trace = make_trace()
    labels = trace.sets.fresh(4)
    trace.values["node"] = Labels((4,), [Family((0,), labels)])
    trace.balance(labels, 2, "two groups")
    trace.frozen.append((labels[:1], "an output"))
    solve(trace)
    assert len(live_blocks(trace)) == 1
    assert bool(frozen_classes(trace)[trace.roots[labels]].all())
    assert find_reasons(trace)(trace.roots[labels[3:]]) == "an output"
