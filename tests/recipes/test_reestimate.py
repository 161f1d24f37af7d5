"""Batch norm after pruning."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.recipes.reestimate import reestimate_norms


def test_batch_norm_gets_the_statistics_of_the_data_and_nothing_else_changes() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    net[1].eval()
    data = [torch.randn(64, 3) + 2 for _ in range(3)]
    before = net[0].weight.clone()
    assert reestimate_norms(net, data, (data[0],)) == 1
    with torch.no_grad():
        means = torch.stack([net[0](x).mean(0) for x in data]).mean(0)
    assert torch.allclose(net[1].running_mean, means, atol=1e-5)  # type: ignore[arg-type]
    assert torch.equal(net[0].weight, before)  # type: ignore[arg-type]
    assert net[1].momentum == 0.1 and [m.training for m in net.modules()] == [True, True, False, True]
    assert reestimate_norms(nn.Linear(2, 2), [torch.ones(1, 2)], torch.ones(1, 2)) == 0
