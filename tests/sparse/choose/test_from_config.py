"""The pruner that a config asks for, and the handles it puts on the layers."""

from __future__ import annotations

import pytest

from sparsebit.graph.capture import capture
from sparsebit.sparse import parse_sconfig
from sparsebit.sparse.choose.channel_pruner import ChannelPruner
from sparsebit.sparse.choose.from_config import make_pruner
from sparsebit.sparse.choose.weight_pruner import WeightPruner
from tests.sparse.nets import images, residual


@pytest.mark.parametrize(("kind", "expected"), [("structured", ChannelPruner), ("block", WeightPruner)])
def test_by_the_type_of_sparsity(kind: str, expected: type) -> None:
    gm = capture(residual(), images())
    config = parse_sconfig({"SPARSER": {"TYPE": kind, "STRATEGY": "l1norm", "RATIO": 0.5}})
    pruner = make_pruner(gm, config)
    assert type(pruner) is expected
    assert gm.get_submodule("conv1").sparser is pruner.sparsers["conv1"]
    assert make_pruner(gm, config, pruner.sparsers).sparsers is pruner.sparsers
    assert (pruner.groups is not None) == (kind == "structured")
