"""The user's own class, smaller."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import GraphError
from sparsebit.graph.capture import capture
from sparsebit.sparse import SparseModel
from sparsebit.sparse.channels import find_groups
from sparsebit.sparse.shrink import make_plan, shrink_graph, shrink_module
from sparsebit.sparse.shrink.module import output_difference


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


def test_heads_that_are_regrouped_are_refused_whatever_the_examples() -> None:
    """With equal numbers everywhere, attention computes the same for any number of heads."""

    class Regrouped(Attention):
        def forward(self, x: Tensor) -> Tensor:
            b, t, _ = x.shape
            qkv = self.qkv(self.stem(x)).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
            return self.out(y.transpose(1, 2).reshape(b, t, -1))

    for examples in (torch.zeros(2, 5, 8), torch.ones(2, 5, 8, dtype=torch.bfloat16)):
        model = Regrouped().eval().to(examples.dtype)
        settings = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}
        smodel = SparseModel(model, {"SPARSER": settings}, examples)
        smodel.calc_params()
        with pytest.raises(GraphError, match="output 0 differs by"):
            smodel.shrink("module")


def test_results_in_containers_of_any_kind_are_compared() -> None:
    one, other = (Gives(SimpleNamespace(logits=torch.full((2,), number))) for number in (1.0, 2.0))
    assert output_difference(one, one, (), {}) is None
    assert output_difference(one, other, (), {}) == "output 0 differs by 1"


def test_missing_numbers_are_not_equal_to_others() -> None:
    good, infinite = torch.ones(3), torch.tensor([1, math.inf, math.nan])
    for one, other in itertools.product((good, infinite), repeat=2):
        assert (output_difference(Gives(one), Gives(other), (), {}) is None) == (one is other)
    assert (
        output_difference(Gives(infinite * torch.tensor([1.01, 1, 1])), Gives(infinite), (), {}) is not None
    )


class Gives(nn.Module):
    def __init__(self, value: object) -> None:
        super().__init__()
        self.value = value

    def forward(self) -> object:
        return self.value


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
