"""What happens when something goes wrong: exit codes, messages, JSON, interrupts."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from sparsebit.cli.command import Command, Entry, Outcome
from sparsebit.cli.main import SCREEN, run
from sparsebit.errors import SparsebitError
from tests.cli.conftest import Cli, left_behind

ROOT = Path(__file__).resolve().parents[2]


def command(action: object) -> tuple[Entry, ...]:
    def work(arguments: argparse.Namespace) -> Outcome:
        result = action() if callable(action) else action
        assert isinstance(result, Outcome)
        return result

    made = Command(description="d", examples=("sparsebit try",), add_arguments=lambda parser: None, run=work)
    return (Entry("try", "h", lambda: made),)


def raising(error: BaseException) -> tuple[Entry, ...]:
    def action() -> Outcome:
        raise error

    return command(action)


def test_a_mistake_is_two_with_its_message_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["try"], raising(SparsebitError("no such layer", where="net.py:3", hint="look again"))) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "sparsebit: no such layer\n  where: net.py:3\n  next:  look again\n"


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["try", "--debug"], raising(SparsebitError("no"))) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_a_bug_of_ours_is_one_and_says_how_to_see_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["try"], raising(ZeroDivisionError("oh"))) == 1
    err = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: oh" in err and "--debug" in err and "Traceback" not in err


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["try"], raising(KeyboardInterrupt())) == 130
    assert capsys.readouterr().err == "sparsebit: interrupted; no incomplete file was left\n"


def test_a_long_message_fits_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    run(["try"], raising(SparsebitError("\n".join(f"problem {i}" for i in range(200)), hint="the way out")))
    err = capsys.readouterr().err
    assert len(err.splitlines()) <= SCREEN
    assert "problem 0" in err and "the way out" in err


def test_errors_as_json_keep_their_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["try", "--json"], raising(SparsebitError("no", where="here", hint="so"))) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is False and found["exit_code"] == 2
    assert found["error"] == {"type": "SparsebitError", "message": "no", "where": "here", "hint": "so"}


def test_results_as_json_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = Outcome(data={"path": Path("a/b"), "ratio": float("inf"), "shape": (1, 2)}, exit_code=1)
    assert run(["try", "--json"], command(outcome)) == 1
    found = json.loads(capsys.readouterr().out)
    assert found == {"command": "try", "ok": False, "path": "a/b", "ratio": None, "shape": [1, 2]}


def test_options_are_written_out(cli: Cli) -> None:
    """``--js`` set --json, and was not seen where text or JSON is chosen."""
    done = cli("schema", "--js")
    assert done.code == 2 and "unknown arguments: --js" in done.err and not done.out


def test_unknown_words_are_mistakes_too(cli: Cli) -> None:
    done = cli("quantise")
    assert done.code == 2 and "invalid choice" in done.err and "--help" in done.err
    assert cli("capture").code == 2
    assert cli().code == 2


def test_markup_in_names_is_not_interpreted(capsys: pytest.CaptureFixture[str]) -> None:
    run(["try"], command(Outcome(shown=("layer[bold]0[/bold]",))))
    assert capsys.readouterr().out.strip() == "layer[bold]0[/bold]"


def test_names_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = "layer\x1b]0;title\u202e"
    run(["try"], command(Outcome(shown=(name,))))
    run(["try"], raising(SparsebitError(f"no layer {name}")))
    for text in capsys.readouterr():
        assert text.endswith(r"layer\x1b]0;title\u202e" + "\n")


def test_a_killed_run_leaves_nothing(place: Path) -> None:
    """The data goes on for ever; the process is stopped while it calibrates."""
    (place / "slow.py").write_text(
        "import itertools, pathlib, time, torch\n"
        "def batches():\n"
        "    for step in itertools.count():\n"
        "        pathlib.Path('running').touch()\n"
        "        time.sleep(0.05)\n"
        "        yield torch.randn(2, 3, 8, 8)\n"
    )
    words = ["quantize", "net.py:make", "--data", "slow.py:batches", "--output", "out"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    started = subprocess.Popen(
        [sys.executable, "-m", "sparsebit", *words],
        cwd=place,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts its background jobs with the interrupt ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    for _ in range(3000):
        if (place / "running").exists() or started.poll() is not None:
            break
        try:
            started.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=300)
    assert started.returncode == 130, err
    assert err.startswith("sparsebit: interrupted; no incomplete file was left; run it again with --resume")
    assert not (place / "out").exists()
    assert left_behind(place) == []


def test_an_interrupt_while_cleaning_up_does_not_break_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it

    def action() -> Outcome:
        try:
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("not interrupted")
        finally:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            (tmp_path / "cleaned").touch()

    try:
        assert run(["try"], command(action)) == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert (tmp_path / "cleaned").exists()
    assert capsys.readouterr().err.count("sparsebit: cleaning up, this takes a moment\n") == 2


def test_an_ignored_interrupt_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert (
            run(["try"], command(lambda: Outcome(exit_code=int(signal.raise_signal(signal.SIGINT) or 0))))
            == 0
        )
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_waits_for_the_import_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []

    def interrupted_import(name: str) -> None:
        signal.raise_signal(signal.SIGINT)
        loaded.append(name)

    monkeypatch.setattr("sparsebit.cli.main.importlib.import_module", interrupted_import)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run(["try"], raising(AssertionError("it went on"))) == 130 and loaded == ["torch"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_that_becomes_another_error_is_one() -> None:
    def work() -> Outcome:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise ImportError("cannot load module more than once per process")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run(["try"], command(work)) == 130
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_in_a_callback_comes_again() -> None:
    class Weak:
        pass

    def work() -> Outcome:
        one = Weak()
        reference = weakref.ref(one, lambda _: signal.raise_signal(signal.SIGINT))
        del one  # the exception of a callback is printed and forgotten
        assert reference() is None
        os.read(reader, 1)  # nothing comes, so only the interrupt ends it, or at last the watchdog
        return Outcome()

    reader, writer = os.pipe()
    watchdog = threading.Timer(30, os.close, [writer])
    watchdog.start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert run(["try"], command(work)) == 130
        assert watchdog.is_alive()
    finally:
        signal.signal(signal.SIGINT, before)
        watchdog.cancel()
