"""The demo: the whole way in a few seconds, with numbers that hold."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

pytest.importorskip("sklearn")
pytest.importorskip("onnxruntime")

from sparsebit.demo.run import DemoResult, run_demo
from sparsebit.storage.typed import to_plain

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> DemoResult:
    return run_demo(tmp_path_factory.mktemp("demo"), seconds=0.05, recovery=4)


def test_the_table_has_accuracy_size_latency_and_agreement(result: DemoResult) -> None:
    console = Console(file=io.StringIO(), width=100)
    for part in result.shown():
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for words in ("accuracy", "size", "latency", "agreement", "pruned, int8", "report.html"):
        assert words in text


def test_the_numbers_hold(result: DemoResult) -> None:
    first, pruned, last = result.rows
    assert first.accuracy > 0.99 and first.agreement == 1
    assert last.accuracy > first.accuracy - 0.03 and last.agreement > 0.99
    assert first.bytes > 3 * pruned.bytes > 3 * last.bytes
    assert result.mismatch < 1e-2


def test_the_files_and_the_report_are_there(result: DemoResult) -> None:
    assert [path.name for path in result.files] == ["float.onnx", "pruned.onnx", "int8.onnx", "report.html"]
    page = result.files[-1].read_text()
    for words in (
        "of its parameters removed",
        "8-bit weights",
        "Recipes that were tried",
        "pruning.yaml",
        "quantization.yaml",
    ):
        assert words in page
    assert to_plain(result)["rows"][0]["name"] == "float"


def test_make_demo_runs_this() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(
        r"^demo:.*\n\t\$\(call install,demo\)\n\t@\$\(venv\) -m sparsebit demo$", makefile, re.MULTILINE
    )
