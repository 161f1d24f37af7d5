from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, fx, nn
from torch.fx import GraphModule

from sparsebit.errors import GraphError
from sparsebit.graph.capture import capture
from sparsebit.graph.effects import assign
from sparsebit.graph.functional import AutogradCall
from sparsebit.graph.show import COLUMNS, mermaid, table, to_rich_table


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.end = nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(2))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.seen += 1
        y = self.body(x).mean((2, 3))
        left, right = y.split(2, 1)
        return self.end(y) * self.scale, left.reshape(x.shape[0], -1) + right


@pytest.fixture
def gm() -> GraphModule:
    return capture(Net().eval(), (torch.randn(2, 3, 8, 8),))


def test_the_table_has_a_row_per_node_and_all_columns(gm: GraphModule) -> None:
    text = table(gm)
    header, _, *body = text.splitlines()
    assert header.split() == list(COLUMNS)
    assert len(body) == len(gm.graph.nodes)
    conv = next(line for line in body if line.split()[0] == "body_0")
    assert conv.split()[:4] == ["body_0", "conv2d", "body.0", "x"]
    assert "2×4×6×6" in conv
    assert "float32" in conv
    assert "112" in conv
    assert "test_show.py:" in conv


def test_the_table_has_no_addresses_markup_or_colours(gm: GraphModule) -> None:
    text = table(gm)
    assert " at 0x" not in text
    assert "\x1b" not in text
    assert "<" not in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    graph = fx.Graph()
    node = graph.placeholder("x")
    node.name = "[bold]x[/bold]:smile:"
    graph.output(node)
    assert "[bold]x[/bold]:smile:" in table(GraphModule(nn.Module(), graph), ["name"])


def test_columns_are_chosen_and_an_unknown_one_is_an_error(gm: GraphModule) -> None:
    assert table(gm, ["op", "name"]).split()[:2] == ["op", "name"]
    with pytest.raises(GraphError, match="no column 'size'"):
        table(gm, ["size"])


def test_targets_are_spelled_as_a_person_would() -> None:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x**3

    graph, root = fx.Graph(), nn.Module()
    root.fc = nn.Linear(2, 2)
    x = graph.placeholder("x")
    for target in (
        torch.relu,
        torch.nn.functional.gelu,
        torch.Tensor.contiguous,
        assign,
        torch.ops.aten.abs.default,
    ):
        x = graph.call_function(target, (x,))
    x = graph.call_function(AutogradCall(Cube), (graph.call_function(Cube.apply, (x,)),))
    x = graph.call_method("exp", (graph.call_module("fc", (x,)),))
    graph.output(graph.call_function(getattr, (x, "real")))
    text = table(GraphModule(root, graph), ["target"])
    assert [line.strip() for line in text.splitlines()[2:]] == [
        "",
        "torch.relu",
        "torch.nn.functional.gelu" if "torch.nn.functional" in text else "torch._C._nn.gelu",
        "Tensor.contiguous",
        "sparsebit.graph.effects.assign",
        "aten.abs.default",
        "test_targets_are_spelled_as_a_person_would.<locals>.Cube.apply",
        "test_targets_are_spelled_as_a_person_would.<locals>.Cube.apply",
        "fc",
        "exp",
        "getattr",
    ]


def test_a_table_without_shapes_is_fine() -> None:
    text = table(fx.symbolic_trace(nn.Sequential(nn.ReLU())))
    assert "relu" in text


def test_several_values_in_one_cell(gm: GraphModule) -> None:
    text = table(gm, ["name", "shape", "dtype"])
    split = next(line for line in text.splitlines() if line.split()[0] == "split")
    assert "2×2, 2×2" in split
    size = next(line for line in text.splitlines() if line.split()[0] == "size")
    assert size.split() == ["size", "2", "int"]


def test_a_rich_table_is_given_too(gm: GraphModule) -> None:
    assert to_rich_table(gm).row_count == len(gm.graph.nodes)


# This grammar is stricter than Mermaid's. That Mermaid takes what passes here was checked with the parser of
# mermaid 11.17.2, on graphs like these and on names with every printable character.

TEXT = r"(?:[A-Za-z0-9_.,+=/×]|#\d+;)+"
LABEL = rf'"{TEXT}(?:<br/>{TEXT})?"'
STYLE = r"[a-z]+:#[0-9a-f]{6}"
LINES = {
    "node": re.compile(
        rf"(n\d+)(?:\(\[{LABEL}\]\):::(?:input|output)|\[\({LABEL}\)\]:::state|\{{\{{{LABEL}\}}\}}:::effect|\[{LABEL}\])"
    ),
    "edge": re.compile(rf"(n\d+) -->(?:\|{LABEL}\|)? (n\d+)"),
    "class": re.compile(rf"classDef (?:input|output|state|effect) {STYLE}(?:,{STYLE})*"),
}


def parse(text: str) -> dict[str, int]:
    """Check a flowchart line by line; every node is defined once, and edges only join defined nodes."""
    lines = text.split("\n")
    assert lines[0] == "flowchart TB"
    count = dict.fromkeys(LINES, 0)
    defined: set[str] = set()
    for line in lines[1:]:
        kind, match = next(
            ((kind, match) for kind, grammar in LINES.items() if (match := grammar.fullmatch(line.strip()))),
            (None, None),
        )
        assert kind is not None and match is not None, line
        count[kind] += 1
        if kind == "node":
            assert match[1] not in defined
            defined.add(match[1])
        if kind == "edge":
            assert {match[1], match[2]} <= defined
    return count


def test_the_flowchart_of_a_real_graph(gm: GraphModule) -> None:
    text = mermaid(gm)
    count = parse(text)
    assert count["node"] == len(gm.graph.nodes)
    assert count["edge"] == sum(len(node.all_input_nodes) for node in gm.graph.nodes)
    assert '|"2×4×6×6"|' in text
    assert "torch" not in text


def test_inputs_outputs_state_and_effects_look_different(gm: GraphModule) -> None:
    text = mermaid(gm)
    assert re.search(r'n\d+\(\["x"\]\):::input', text)
    assert re.search(r'n\d+\(\["output"\]\):::output', text)
    assert re.search(r'n\d+\[\("scale"\)\]:::state', text)
    assert re.search(r"n\d+\{\{.*\}\}:::effect", text)


def chart_of(names: list[str]) -> str:
    graph = fx.Graph()
    node = graph.placeholder("x")
    for name in names:
        node = graph.call_function(torch.relu, (node,))
        node.name = name
    graph.output(node)
    gm = GraphModule(nn.Module(), fx.Graph())
    gm._graph = graph  # no code is generated: these are no Python names
    return mermaid(gm)


NASTY = [
    *(
        "end",
        "graph",
        "subgraph",
        "style",
        "class",
        "default",
        "A-->B",
        '"',
        "`x`",
        "#quot;",
        "#35;",
        "%%{init}%%",
    ),
    *(
        "a|b",
        "]",
        "{{",
        "<script>",
        "style a:#b;",
        "---",
        ":::x",
        ";",
        "\\",
        "direction TB",
        "@{ shape: x }",
        "",
        ".",
    ),
    *("é", "中", "😀", "\n", "\x00", "\u2028"),
]


@pytest.mark.parametrize("name", NASTY)
def test_nasty_names(name: str) -> None:
    assert parse(chart_of([name, f"a{name}b"]))["node"] == 4


@given(st.lists(st.text(max_size=12), min_size=1, max_size=4))
def test_any_name_gives_a_chart(names: list[str]) -> None:
    assert parse(chart_of(names))["node"] == len(names) + 2


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12))
def test_a_label_can_be_read_back(name: str) -> None:
    line = chart_of([name]).split("\n")[2]
    label = re.search(r'\["(.*?)<br/>', line)
    assert label is not None
    assert re.sub(r"#(\d+);", lambda match: chr(int(match[1])), label[1]) == name
