"""Normalisations: the argument orders of ``F.x`` and ``torch.x`` come out the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sparsebit.graph.ops.norm import OPS
from tests.graph.ops.sampling import one_node, parameter, positive, real, sample

X, WEIGHT, BIAS, MEAN, VAR = (
    real(2, 4, 5),
    parameter(4),
    parameter(4),
    parameter(4),
    nn.Parameter(positive(4)),
)


@pytest.mark.parametrize(
    "case",
    [
        sample(F.batch_norm, X, MEAN, VAR, WEIGHT, BIAS, False, 0.1, 1e-3),
        sample(torch.batch_norm, X, WEIGHT, BIAS, MEAN, VAR, False, 0.1, 1e-3, False),
        sample(F.batch_norm, X, MEAN, VAR, weight=WEIGHT, bias=BIAS, eps=1e-3),
    ],
)
def test_a_batch_norm_binds_alike(case: object) -> None:
    call = one_node(case).call  # type: ignore[arg-type]
    held = {
        name: call.owner.get_parameter(str(call.arguments[name].target)) for name in ("weight", "running_var")
    }  # type: ignore[attr-defined]
    assert torch.equal(held["weight"], WEIGHT) and torch.equal(held["running_var"], VAR)
    assert call.arguments["eps"] == 1e-3 and call.arguments["training"] is False


def test_norms_over_channels_have_their_weight_on_the_last_axis() -> None:
    over = {spec.name for spec in OPS if spec.channels == "norm_over_channels"}
    assert (
        over
        == {spec.name for spec in OPS if spec.weight and spec.channel_axis == -1}
        == {"layer_norm", "rms_norm"}
    )


def test_a_norm_is_neither_elementwise_nor_free_of_shift() -> None:
    assert not any(spec.elementwise or spec.moves or spec.homogeneous or spec.macs for spec in OPS)
