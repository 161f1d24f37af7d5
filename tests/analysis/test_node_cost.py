"""Parameters, multiply-accumulates and bytes, against what torch counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor, fx, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sparsebit.analysis import CostReport, cost
from sparsebit.errors import GraphError
from sparsebit.graph.capture import capture


class Residual(nn.Module):
    """Conv, batch norm, grouped and depthwise conv around a skip; transposed conv; pooling; linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.grouped, self.depthwise = (
            nn.Conv2d(8, 8, 3, padding=1, groups=4),
            nn.Conv2d(8, 8, 5, padding=2, groups=8),
        )
        self.up, self.head = nn.ConvTranspose2d(8, 4, 4, 2, 1, groups=2), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.up(x + self.depthwise(torch.relu(self.grouped(x))))
        return self.head(x.mean((2, 3)))


class Block(nn.Module):
    """Attention (fused, and written as einsum), a gated MLP, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = (
            nn.Embedding(20, 16),
            nn.Linear(16, 48),
            nn.Linear(16, 16, bias=False),
        )
        self.up = nn.Parameter(torch.randn(16, 24))
        self.down = nn.Parameter(torch.randn(24, 16))
        self.head = nn.Linear(16, 20, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        fused = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        plain = torch.einsum("bhij,bhjd->bhid", torch.einsum("bhid,bhjd->bhij", q, k).softmax(-1), v)
        x = x + self.out((fused + plain).transpose(1, 2).flatten(2))
        x = x + torch.addmm(x.flatten(0, 1), F.silu(x.flatten(0, 1) @ self.up), self.down).view_as(x)
        return self.head(x)


class Recurrent(nn.Module):
    """A two-layer bidirectional LSTM with projection, a GRU, and a cell stepped by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(5, 8, num_layers=2, bidirectional=True, proj_size=3)
        self.gru, self.cell = nn.GRU(6, 7), nn.GRUCell(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.gru(self.lstm(x)[0])[0]
        state = torch.zeros(x.shape[1], 4, dtype=x.dtype)
        for step in range(3):
            state = self.cell(x[step], state)
        return state


CASES: dict[str, tuple[nn.Module, Tensor]] = {
    "convolutions": (Residual(), torch.randn(2, 3, 32, 32)),
    "attention": (Block(), torch.randint(20, (2, 6))),
    "recurrence": (Recurrent().double(), torch.randn(4, 2, 5, dtype=torch.float64)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    model, example = CASES[request.param]
    return model.eval(), example


def flops_by_torch(model: nn.Module, *inputs: Any) -> int:
    # FlopCounterMode does not know the fused CPU kernel of attention
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*inputs)
    return int(counter.get_total_flops())


def test_macs_are_half_the_flops_torch_counts(case: tuple[nn.Module, Tensor]) -> None:
    model, example = case
    report = cost(capture(model, example))
    assert 2 * report.macs == flops_by_torch(model, example)
    assert not report.unknown


def test_parameters_are_the_models(case: tuple[nn.Module, Tensor]) -> None:
    model, example = case
    report = cost(capture(model, example))
    assert report.params == sum(parameter.numel() for parameter in model.parameters())
    assert report.weight_bytes == sum(parameter.nbytes for parameter in model.parameters())


def test_columns_add_up_where_weights_are_shared() -> None:
    rows = {row.name: row for row in cost(capture(Block().eval(), torch.randint(20, (2, 6)))).rows}
    assert rows["embed"].params == 20 * 16 and rows["embed"].macs == 0
    assert rows["head"].params == 0 and rows["head"].macs == 2 * 6 * 16 * 20


def test_rows_say_where_and_what() -> None:
    first = cost(capture(Residual().eval(), torch.randn(2, 3, 32, 32))).rows[0]
    assert (first.op, first.module, first.params) == ("conv2d", "stem.0", 8 * 3 * 9)
    assert first.macs == 2 * 16 * 16 * 8 * 3 * 9
    assert (first.weight_bytes, first.output_bytes) == (4 * 8 * 3 * 9, 4 * 2 * 8 * 16 * 16)


def test_a_graph_without_shapes_is_refused_with_the_way_out() -> None:
    with pytest.raises(GraphError, match=r"no shape is recorded[\s\S]*node '_0'[\s\S]*example inputs"):
        cost(fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2))))
    with pytest.raises(
        GraphError, match=r"only a captured model has a cost[\s\S]*a Linear[\s\S]*capture\(model"
    ):
        cost(nn.Linear(2, 2))  # type: ignore[arg-type]


class Mystery(nn.Module):
    """A layer that the table does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Tracer(fx.Tracer):
    """Keeps the layer whole."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Mystery)


@pytest.fixture
def mysterious() -> CostReport:
    from sparsebit.graph.value import TensorInfo

    net = nn.Sequential(Mystery())
    gm = fx.GraphModule(net, Tracer().trace(net))
    for node in gm.graph.nodes:
        node.meta["value"] = TensorInfo((3, 4), torch.float32)
    return cost(gm)


def test_unknown_operators_are_listed_with_an_estimate(mysterious: CostReport) -> None:
    (row,) = mysterious.rows
    assert row.op == "unknown" and row.macs == 3 * 4 * 4 and row.params == 20
    assert mysterious.unknown == (row,)
    assert str(mysterious) == "20 parameters (80 B), 48 MACs, 48 B of results; estimated, because unknown: _0"


def rendered(report: CostReport) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(report.table())
    return captured.get()


def test_the_table_marks_estimates_and_ends_with_totals(mysterious: CostReport) -> None:
    text = rendered(mysterious)
    assert "~48" in text and "unknown" in text
    assert "total" in text.splitlines()[-2]


def test_the_table_leaves_out_what_costs_nothing_unless_asked() -> None:
    report = cost(capture(Residual().eval(), torch.randn(1, 3, 16, 16)))
    assert "relu" not in rendered(report)
