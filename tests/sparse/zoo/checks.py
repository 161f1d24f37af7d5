"""What every shrunk model is checked for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.node import map_aggregate

from sparsebit.graph.capture import CapturedModule, capture
from sparsebit.sparse.channels import ChannelGroups
from sparsebit.sparse.shrink import ShrinkPlan, make_plan, shrink_graph
from tests.sparse.zoo.choose import choose
from tests.sparse.zoo.oracle import hide_numbers, reference
from tests.zoo.entry import outputs_of


def captured(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> CapturedModule:
    """The graph of a float64 model whose elements are numbered; casts to float32 inside it are lifted."""
    return lift_casts(capture(hide_numbers(model), args, kwargs))


def lift_casts(gm: CapturedModule) -> CapturedModule:
    """What the graph casts to float32 is cast to float64."""

    def lift(value: object) -> object:
        return torch.float64 if value is torch.float32 else value

    for node in gm.graph.nodes:
        node.args, node.kwargs = map_aggregate(node.args, lift), map_aggregate(node.kwargs, lift)  # type: ignore[arg-type]
        if node.target is torch.Tensor.float:
            node.target = torch.Tensor.double
    gm.recompile()
    return gm


def shrunk(gm: CapturedModule, groups: ChannelGroups, ratio: float) -> tuple[CapturedModule, ShrinkPlan]:
    """The graph without this part of every group, chosen by chance."""
    plan = make_plan(gm, groups, choose(groups, ratio))
    return shrink_graph(gm, plan), plan


def error_against_original(
    gm: CapturedModule, small: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> float:
    """The largest relative difference between the shrunk model and the masked original."""
    with torch.no_grad():
        got = outputs_of(small(*args, **(kwargs or {})))
    want = reference(gm, small, args, kwargs or {})
    assert len(got) == len(want)
    return max(relative_error(left, right) for left, right in zip(got, want, strict=True))


def relative_error(got: Tensor, want: Tensor) -> float:
    """Largest difference over largest value."""
    assert got.shape == want.shape
    if not want.numel():
        return 0.0
    got, want = got.detach().double().nan_to_num(), want.detach().double().nan_to_num()
    return float((got - want).abs().max() / want.abs().max().clamp(min=1e-30))


def recorded_shapes_hold(
    small: CapturedModule, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> None:
    """Every node of a shrunk graph gives what its recorded value says."""
    from sparsebit.graph.run import run_graph
    from sparsebit.graph.value import describe

    def compare(node: Any, value: Any) -> None:
        if "value" in node.meta and node.op != "output":
            assert describe(value) == node.meta["value"], node.name

    with torch.no_grad():
        run_graph(small, args, kwargs, watch=compare)
