"""The comparison with peers: rows, lines that are counted, the page, and results that survive a later run."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from benchmarks.peers import answer, one_row, run, venv
from benchmarks.peers.chart import draw_bars
from benchmarks.peers.page import markdown_table, show_tests, write_page
from benchmarks.peers.pruning import part as pruning
from benchmarks.peers.pruning.measure import count_macs, count_parameters
from benchmarks.peers.row import Column, Options, Row, count_lines, failed_row, row_as_dict, row_from
from benchmarks.peers.tests import run as peer_tests
from benchmarks.peers.tests.old_names import run_old_names
from benchmarks.peers.tests.suite import NotApplicable, Suite
from benchmarks.peers.vision import part as vision
from benchmarks.peers.vision.measure import sqnr

HERE = Path(run.__file__).parent
COLUMNS = (
    Column(key="accuracy", heading="accuracy %", better="higher"),
    Column(key="seconds", heading="s", better="lower", digits=1),
    Column(key="never", heading="never measured"),
)


def row(peer: str, setting: str = "W8A8", **measures: float | None) -> Row:
    return Row(peer=peer, version="1.0", model="net", setting=setting, measures=measures, lines=7)


def test_only_code_between_the_marks_is_counted(tmp_path: Path) -> None:
    script = tmp_path / "peer.py"
    script.write_text(
        '"""Not counted."""\nimport os\n# user: begin\nimport a\n\n# why\ndef f():\n    """Text."""\n'
        "    return g(\n        1\n    )\n# user: end\nx = 1\n# user: begin\ny = 2\n# user: end\n"
    )
    assert count_lines(script) == 6
    script.write_text("x = 1\n")
    with pytest.raises(ValueError, match="expected the comments '# user: begin' and '# user: end'"):
        count_lines(script)
    script.write_text("# user: begin\n# user: begin\n")
    with pytest.raises(ValueError, match=r"peer.py:2: '# user: begin' without its counterpart"):
        count_lines(script)


@pytest.mark.parametrize("part", [vision, pruning], ids=["vision", "pruning"])
def test_every_peer_has_a_script_that_counts_and_pinned_requirements(part: Any) -> None:
    folder = Path(part.__file__).parent
    for peer in part.PEERS:
        assert count_lines(folder / "scripts" / f"{peer}.py") > 0
        pins = folder / "requirements" / f"{peer}.txt"
        if peer in (part.OURS, "onnxruntime"):  # no other packages than ours
            assert not pins.is_file()
            continue
        lines = [line for line in pins.read_text().splitlines() if not line.startswith("#")]
        assert lines and all("==" in line for line in lines)
    assert part.CHART in {column.key for column in part.COLUMNS}


def test_the_best_value_among_rows_of_one_width_is_bold() -> None:
    rows = [row("a", accuracy=91.0, seconds=2.0), row("b", "W8A8, slow", accuracy=90.0, seconds=None)]
    lines = markdown_table(COLUMNS, [*rows, row("c", "W4A8", accuracy=95.0)])
    assert lines[0] == "| tool | setting | accuracy % | s | lines |"
    assert lines[2] == "| a 1.0 | W8A8 | **91.00** | 2.0 | 7 |"
    assert lines[3] == "| b 1.0 | W8A8, slow | 90.00 |  | 7 |"
    assert lines[4] == "| c 1.0 | W4A8 | 95.00 |  | 7 |", "nothing to compare with"


def test_the_chart_has_a_bar_for_every_value() -> None:
    rows = [row("sparsebit", accuracy=80.0), row("a & b", accuracy=40.0), row("none", accuracy=None)]
    drawing = draw_bars("Title", COLUMNS[0], rows)
    assert drawing.count("<rect") == 2 and "a &amp; b" in drawing and "longer is better" in drawing
    assert draw_bars("Title", COLUMNS[0], [failed_row("x", "net", "W8A8", "no")]) == ""


def test_a_row_comes_back_from_json() -> None:
    one = row("a", accuracy=1.5)
    assert row_from(json.loads(json.dumps(row_as_dict(one)))) == one


def test_rows_of_other_peers_stay_and_a_failure_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(peer: str, options: Options) -> list[Row]:
        if peer == "broken":
            raise RuntimeError(f"cannot read {options.work}/file")
        return [row(peer, accuracy=float(len(measured)))]

    measured: list[str] = []
    part = SimpleNamespace(PEERS=("a", "broken", "b"), PROTOCOL={"images": 3}, measure=measure)
    monkeypatch.setattr(run.importlib, "import_module", lambda name: part)
    options = Options(venvs=tmp_path, work=tmp_path / "work")
    console = Console(quiet=True)
    run.run_part("x", None, options, tmp_path, console)
    measured.append("once")
    run.run_part("x", ["b"], options, tmp_path, console)
    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert [one["peer"] for one in rows] == ["a", "broken", "b"]
    assert [one["measures"].get("accuracy") for one in rows] == [0.0, None, 1.0]
    assert rows[1]["failed"] == "RuntimeError: cannot read WORK/file"


def test_a_run_of_one_setting_replaces_only_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(peer: str, options: Options) -> list[Row]:
        return [row(peer, setting, accuracy=value) for setting in ("W8A8", "W4A8") if options.wants(setting)]

    monkeypatch.setattr(
        run.importlib,
        "import_module",
        lambda name: SimpleNamespace(PEERS=("a",), PROTOCOL={}, measure=measure),
    )
    value = 1.0
    run.run_part("x", None, Options(venvs=tmp_path, work=tmp_path), tmp_path, Console(quiet=True))
    value = 2.0
    only = Options(venvs=tmp_path, work=tmp_path, settings=("W8",))
    run.run_part("x", None, only, tmp_path, Console(quiet=True))
    rows = json.loads((tmp_path / "x.json").read_text())["rows"]
    assert [(one["setting"], one["measures"]["accuracy"]) for one in rows] == [("W8A8", 2.0), ("W4A8", 1.0)]


def test_a_run_replaces_every_earlier_row_of_its_peer_and_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting that was renamed must not stay beside its new name, and old rows keep the commit they were made at."""

    def measure(peer: str, options: Options) -> list[Row]:
        return [row(peer, setting, accuracy=1.0) for setting in settings]

    part = SimpleNamespace(PEERS=("a", "b"), PROTOCOL={}, measure=measure)
    monkeypatch.setattr(run.importlib, "import_module", lambda name: part)
    commits = iter(["first", "second"])
    monkeypatch.setattr(run, "describe", lambda seed, packages: {"commit": commit})
    commit, settings = next(commits), ["W8A8", "W4A8"]
    run.run_part("x", None, Options(venvs=tmp_path, work=tmp_path), tmp_path, Console(quiet=True))
    path = tmp_path / "x.json"
    content = json.loads(path.read_text())
    for one in content["rows"]:
        del one["commit"]  # as files were before rows kept it
    path.write_text(json.dumps(content))
    commit, settings = next(commits), ["W8A8, renamed"]
    run.run_part(
        "x", ["b"], Options(venvs=tmp_path, work=tmp_path, models=("other",)), tmp_path, Console(quiet=True)
    )
    kept = [(one["peer"], one["setting"], one["commit"]) for one in json.loads(path.read_text())["rows"]]
    assert kept == [
        ("a", "W8A8", "first"),
        ("a", "W4A8", "first"),
        ("b", "W8A8", "first"),
        ("b", "W4A8", "first"),
        ("b", "W8A8, renamed", "second"),
    ], "rows of models that were not asked for stay"
    run.run_part("x", ["b"], Options(venvs=tmp_path, work=tmp_path), tmp_path, Console(quiet=True))
    assert [one["setting"] for one in json.loads(path.read_text())["rows"]] == [
        "W8A8",
        "W4A8",
        "W8A8, renamed",
    ]


def test_a_peer_is_measured_by_its_part_in_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def run_script(*args: Any, threads: int) -> dict[str, Any]:
        calls.append(args)
        if len(calls) > 1:
            raise RuntimeError("no module named peer")
        return {"accuracy": 1.0}

    monkeypatch.setattr(one_row, "run_script", run_script)
    options = Options(venvs=tmp_path, work=tmp_path, quick=True)
    python = Path("python")
    given = (pruning, "torch_pruning", "net", "L1 norm, additions kept", python, options)
    assert one_row.measured(*given) == {"accuracy": 1.0}
    assert calls[0] == (
        *(python, "benchmarks.peers.pruning.measure", "--peer", "torch_pruning", "--model", "net"),
        *("--setting", "L1 norm, additions kept"),
        *(
            "--folder",
            str(tmp_path / "torch_pruning/net/L1_norm_additions_kept"),
            "--count",
            "64",
            "--limit",
            "100",
        ),
    )
    assert one_row.measured(*given) == {"failed": "RuntimeError: no module named peer"}


def test_a_peer_without_requirements_runs_in_our_environment(tmp_path: Path) -> None:
    options = Options(venvs=tmp_path, work=tmp_path)
    assert one_row.python_of(vision, "onnxruntime", options) == Path(sys.executable)


def test_the_failure_of_a_script_is_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(script: Any, task: Any, options: Any) -> dict[str, Any]:
        assert script.PACKAGE == "sparsebit" and options.count == 3
        if options.setting == "bad":
            raise ValueError("two\n lines")
        return {"accuracy": 5.0}

    monkeypatch.setattr(answer, "open_task", lambda name: name)
    for setting, expected in (("good", {"accuracy": 5.0}), ("bad", {"failed": "ValueError: two lines"})):
        given = ["--peer", "sparsebit", "--model", "net", "--setting", setting, "--folder", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["measure", *given, "--count", "3"])
        threads = torch.get_num_threads()
        with warnings.catch_warnings():
            answer.print_answer("vision", measure, ("count",))
        logging.disable(logging.NOTSET)
        torch.set_num_threads(threads)
        found = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        found.pop("version", None)
        assert found == expected


def test_the_page_is_what_the_results_say(tmp_path: Path) -> None:
    """docs/peers.md is made, not edited: ``python -m benchmarks.peers.run --only-page`` makes it anew."""
    docs = HERE.parents[1] / "docs"
    write_page(HERE / "results", tmp_path / "peers.md", run.PARTS)
    for made in (tmp_path / "peers.md", *tmp_path.glob("assets/*.svg")):
        kept = docs / made.relative_to(tmp_path)
        assert made.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8"), kept.name


def test_the_page_says_what_is_missing(tmp_path: Path) -> None:
    content = {
        "environment": {"processor": "P", "commit": "c"},
        "protocol": {"test_images": 5},
        "rows": [
            row_as_dict(row("sparsebit", accuracy=90.0)),
            row_as_dict(failed_row("nncf", "net", "W8A8", "ImportError: `x`")),
            row_as_dict(failed_row("aimet", "net", "W8A8", "not measured yet: this run only collected")),
            row_as_dict(failed_row("aimet", "other", "W8A8", "not measured yet: this run only collected")),
        ],
    }
    (tmp_path / "vision.json").write_text(json.dumps(content))
    write_page(tmp_path, tmp_path / "peers.md", ("vision", "pruning"))
    text = (tmp_path / "peers.md").read_text()
    assert "- nncf W8A8 on net: failed: `ImportError: 'x'`" in text
    assert "- aimet W8A8 on net and other: not measured yet\n" in text
    assert "- test images: 5" in text and "Structured pruning" not in text


def test_counts_of_a_suite() -> None:
    def absent() -> None:
        raise NotApplicable("no such type")

    def wrong() -> None:
        raise AssertionError("1\n is not 2")

    suite = Suite("theirs", "somewhere")
    suite.run("good", lambda: None)
    suite.run("absent", absent)
    suite.run("wrong", wrong)
    assert (suite.passed, suite.not_applicable) == (1, {"absent": "no such type"})
    assert suite.failed == {"wrong": "AssertionError: 1 is not 2"}
    shown = show_tests({"about": "Text.", "suites": [vars(suite)]})
    assert "| theirs | 1 | 1 | 1 |" in shown and "- theirs: no such type (1)" in shown
    suite.files = {"a.py": 1, "b.py": 0}
    assert "files: a.py, b.py" in show_tests({"about": "", "suites": [vars(suite)]})
    suite.files = {f"{index}.py": 1 for index in range(9)}
    assert "; 9 files, named in" in show_tests({"about": "", "suites": [vars(suite)]})


def test_a_failure_is_explained_by_its_name_or_by_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_us = {
        "f.py::TestFX::test_pretty_print_node": {
            "outcome": "failed",
            "calls": 1,
            "reason": "tuple index out of range",
        },
        "f.py::TestFX::test_args_no_self": {
            "outcome": "failed",
            "calls": 1,
            "reason": "tuple index out of range",
        },
        "f.py::test_new": {"outcome": "failed", "calls": 1, "reason": "1 is not 2"},
        "f.py::test_theirs": {"outcome": "failed", "calls": 1, "reason": "no library"},
        "f.py::test_good": {"outcome": "passed", "calls": 2},
        "f.py::test_other": {"outcome": "passed", "calls": 0},
    }
    alone = {"f.py::test_theirs": {"outcome": "failed"}}
    answers = {"adapter": with_us, "recorder": alone}
    monkeypatch.setattr(peer_tests, "run_pytest", lambda names, root, plugin, paths, limit: answers[plugin])
    suite = Suite("theirs", "somewhere")
    peer_tests.run_file(suite, tmp_path / "f.py::TestFX", tmp_path, "adapter", [], 1)
    assert suite.failed == {
        "f.py::TestFX::test_pretty_print_node": peer_tests.EXPLAINED["test_pretty_print_node"],
        "f.py::TestFX::test_args_no_self": peer_tests.REFUSED,
        "f.py::test_new": "1 is not 2",
    }
    assert suite.not_applicable == {
        "f.py::test_theirs": "also fails with the original functions",
        "f.py::test_other": "calls no function that ours replaces",
    }
    assert suite.files == {"f.py": 1}


def test_names_of_the_old_toolkit_are_found_or_say_what_replaces_them(tmp_path: Path) -> None:
    old = tmp_path / "sparsebit" / "quantization" / "common.py"
    old.parent.mkdir(parents=True)
    old.write_text("import torch\nclass Backend: ...\ndef get_qscheme(x): ...\n_inner = never = 1\n")
    suite = run_old_names(tmp_path)
    assert suite.passed == 1
    assert suite.not_applicable == {
        "sparsebit.quantization.common.get_qscheme": "removed; the error says what replaces it"
    }
    assert list(suite.failed) == ["sparsebit.quantization.common.never"]


def test_files_that_do_not_run_again_keep_their_counts() -> None:
    before = Suite("s", "x", 3, {"a.py": 2, "b.py": 1}, {"a.py::t": "old"}, {"sub/b.py::u": "kept"})
    now = Suite("s", "x", 4, {"a.py": 4})
    now.add_rest_of(before)
    assert (now.passed, now.files) == (5, {"a.py": 4, "b.py": 1})
    assert (now.failed, now.not_applicable) == ({}, {"sub/b.py::u": "kept"})


def test_macs_and_parameters_are_counted_alike_for_all() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(8, 5))
    assert count_macs(net, torch.zeros(1, 1, 4, 4)) == 18 * 4 + 40
    assert count_parameters(net) == 18 + 2 + 40 + 5


def test_sqnr_in_decibels() -> None:
    assert sqnr([torch.tensor([3.0, 4.0])], [torch.tensor([3.0, 4.5])]) == pytest.approx(20.0)


def test_a_script_answers_with_its_last_line_and_its_last_error(tmp_path: Path) -> None:
    script = tmp_path / "json.py"  # a script named as a module must not hide it
    script.write_text("import json, sys\nprint('noise')\nprint(json.dumps({'argument': sys.argv[1]}))\n")
    assert venv.run_script(Path(sys.executable), script, "a b") == {"argument": "a b"}
    script.write_text("raise ImportError('no peer')\n")
    with pytest.raises(RuntimeError, match="ImportError: no peer"):
        venv.run_script(Path(sys.executable), script)


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def call(command: list[str], **options: Any) -> str:
        commands.append(command)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        (tmp_path / "peer" / "lib" / version / "site-packages").mkdir(parents=True, exist_ok=True)
        return ""

    monkeypatch.setattr(venv, "_call", call)
    pins = tmp_path / "peer.txt"
    pins.write_text("# --no-deps\npeer==1\n")
    python = venv.ensure(tmp_path, "peer", pins)
    assert python == tmp_path / "peer/bin/python"
    assert commands[0][1:3] == ["-m", "venv"] and commands[1][-1] == "--no-deps"
    assert (tmp_path / "peer/constraints.txt").read_text().startswith("torch==")
    venv.ensure(tmp_path, "peer", pins)
    assert len(commands) == 2
    pins.write_text("peer==2\n")
    venv.ensure(tmp_path, "peer", pins)
    assert len(commands) == 4 and "--no-deps" not in commands[3]


def test_the_command_asks_for_a_folder() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peers.run"],
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parents[1],
    )
    assert done.returncode == 2 and "--venvs: name a folder for the peers' environments" in done.stderr
