"""The user's own class, smaller."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import GraphError
from sparsebit.graph.capture import capture
from sparsebit.sparse.channels import find_groups
from sparsebit.sparse.shrink import make_plan, shrink_graph, shrink_module


class Attention(nn.Module):
    def __init__(self, num_heads: int = 4, head_dim: int = 4) -> None:
        super().__init__()
        self.num_heads, self.head_dim = num_heads, head_dim
        self.stem, self.qkv, self.out = nn.Linear(8, 16), nn.Linear(16, 48), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        qkv = self.qkv(self.stem(x)).view(b, t, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        return self.out(y.transpose(1, 2).reshape(b, t, self.num_heads * self.head_dim))


def test_numbers_kept_as_attributes_are_changed() -> None:
    model, x = Attention().eval(), torch.randn(2, 5, 8)
    gm = capture(model, (x,))
    groups = find_groups(gm)
    kept = {group.name: torch.arange(group.channels) % 2 == 0 for group in groups.free}
    plan = make_plan(gm, groups, kept)
    small = shrink_graph(gm, plan)
    own = shrink_module(model, plan, small, (x,))
    assert isinstance(own, Attention)
    assert (own.num_heads, own.head_dim, own.qkv.out_features) == (2, 4, 24)
    assert model.num_heads == 4
    torch.testing.assert_close(own(x), small(x))


class Literal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x).view(-1, 8))


def test_a_size_in_the_code_is_refused_with_its_place() -> None:
    model, x = Literal(), torch.randn(2, 4)
    gm = capture(model, (x,))
    groups = find_groups(gm)
    plan = make_plan(gm, groups, {"a": torch.arange(8) < 4})
    small = shrink_graph(gm, plan)
    assert small(x).shape == (2, 2)
    with pytest.raises(GraphError) as caught:
        shrink_module(model, plan, small, (x,))
    assert "node 'view'" in str(caught.value) and "test_module.py" in str(caught.value)
