"""Pooling and resampling: defaults that depend on other arguments, and what moves numbers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.pool import OPS
from tests.graph.ops.sampling import one_node, real, sample

X = real(2, 3, 8, 8)


@pytest.mark.parametrize(
    "case",
    [sample(nn.MaxPool2d(3), X), sample(F.max_pool2d, X, 3), sample(torch.ops.aten.max_pool2d.default, X, 3)],
)
def test_an_absent_stride_is_the_kernel(case: object) -> None:
    assert one_node(case).call.arguments["stride"] in (3, [3, 3])  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", [spec for spec in OPS if spec.family == "pool"], ids=lambda spec: spec.name)
def test_a_maximum_moves_numbers_and_a_mean_scales(spec: object) -> None:
    assert bool(spec.moves) == ("max_" in spec.name)  # type: ignore[attr-defined]
    assert bool(spec.homogeneous) == ("avg_" in spec.name)  # type: ignore[attr-defined]
    assert spec.spatial == int(spec.name[-2])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("mode", "moves"), [("nearest", True), ("bilinear", False), ("nearest-exact", True)])
def test_only_nearest_neighbours_are_copies(mode: str, moves: bool) -> None:
    assert one_node(sample(F.interpolate, X, scale_factor=2, mode=mode)).call.moves is moves


def test_an_aten_operator_says_its_mode() -> None:
    call = one_node(sample(torch.ops.aten.upsample_bilinear2d.default, X, [16, 16], False)).call
    assert call.spec.name == "interpolate" and call.arguments["mode"] == "bilinear"
