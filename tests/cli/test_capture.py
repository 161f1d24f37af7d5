"""``sparsebit capture``: what it shows and writes."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli


def test_capture_shows_nodes_and_writes_a_drawing(cli: Cli, place: Path) -> None:
    done = cli("capture", "net.py:make", "--input", "2x3x8x8", "--output", "graph.mmd")
    assert done.code == 0 and "features_0" in done.out and "operators known" in done.out
    assert Path("graph.mmd").read_text().startswith("flowchart TB")
    data = cli("capture", "net.py:make", "--input", "2x3x8x8", "--simplify", "--json").data
    assert [node["op"] for node in data["nodes"]] == [
        "placeholder",
        "conv2d",
        "relu",
        "conv2d",
        "relu",
        "mean",
        "linear",
        "output",
    ]
    assert data["cost"]["params"] > 0
    assert cli("capture", "net.py:make", "--frontend", "symbolic").code == 0
    assert cli("capture", "net.py:make", "--input", "2x3x8x8", "-o", "graph.xyz").code == 2


def test_a_model_that_fails_on_the_input_is_the_users_mistake(cli: Cli) -> None:
    done = cli("capture", "net.py:make", "--input", "2x1x8x8")
    assert done.code == 2 and "Traceback" not in done.err
    assert len(done.err.splitlines()) < 24


def test_what_the_users_code_prints_is_no_part_of_the_json(cli: Cli) -> None:
    done = cli("capture", "net.py:talkative", "--input", "2x3x8x8", "--json")
    assert done.data["ok"] and "hello from the factory" in done.err
