"""Pictures as SVG: boxes for operators, bars along quantized values."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

pytest.importorskip("markupsafe")

from sparsebit.report import TensorHistogram
from sparsebit.report.content import GraphNode
from sparsebit.report.drawing import draw_graph, draw_histogram


def test_a_graph_has_a_box_per_node_with_its_inputs_and_an_edge_per_input() -> None:
    nodes = [
        GraphNode(name="x", op="placeholder", inputs=(), kind="input", shape="1×3"),
        GraphNode(name="<b>", op="conv2d", inputs=(0,), bits="W8 A8", sqnr=31.0, layer="<b>"),
        GraphNode(name="y", op="output", inputs=(1, 0), kind="output"),
    ]
    root = ElementTree.fromstring(str(draw_graph(nodes)))
    boxes = [part for part in root if part.tag == "g"]
    assert [box.attrib["data-inputs"] for box in boxes] == ["", "0", "1 0"]
    assert boxes[1].attrib["data-layer"] == "<b>" and "SQNR 31.0 dB" in boxes[1].attrib["aria-label"]
    assert sum(part.attrib.get("class") == "edge" for part in root) == 3


@pytest.mark.parametrize(("qmax", "drawn"), [(3, 4), (255, 32)])
def test_a_histogram_marks_what_is_clipped_and_draws_no_more_lines_than_fit(qmax: int, drawn: int) -> None:
    shown = TensorHistogram(
        name="relu", counts=(4, 5, 2, 1), lo=-0.5, hi=qmax + 10.5, qmin=0, qmax=qmax, codes="uint8", grid=""
    )
    root = ElementTree.fromstring(str(draw_histogram(shown)))
    paths = {part.attrib["class"]: part.attrib["d"] for part in root if part.tag == "path"}
    assert paths["grid"].count("M") == drawn and paths["ends"].count("M") == 2
    assert paths["bars"] and bool(paths["clipped"]) == (qmax == 3)
    assert f"from 0 to {qmax}" in root.attrib["aria-label"] and "12 numbers" in root.attrib["aria-label"]
