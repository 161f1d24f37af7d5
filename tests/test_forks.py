"""Forked programs are like those that Python starts: alone, with their own words, variables and exit codes."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.forks import Program, run_programs


def test_a_program_is_alone_and_says_how_it_ended(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import neighbour; raise ValueError(neighbour.it)")
    (tmp_path / "neighbour.py").write_text("it = 'no luck'")
    change = (
        "import os, sys, torch; torch.here = 1; print(sys.argv, os.environ['MINE'], os.getcwd()); sys.exit(3)"
    )
    look = "import os, torch; print(hasattr(torch, 'here'), 'MINE' in os.environ, torch.initial_seed())"
    warn = "import warnings; warnings.warn('odd'); print('and on')"
    codes, printed = run_programs(
        [
            Program(["-c", change, "word"], {"MINE": "yes"}),
            Program(["-c", look]),
            Program(["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]),
            Program(["script.py"]),
            Program(["-c", warn]),
            Program(["-c", warn], strict=True),
        ],
        tmp_path,
    )
    assert codes == [3, 0, -signal.SIGKILL, 1, 0, 1]
    assert printed[0] == f"['-c', 'word'] yes {tmp_path}\n"
    assert printed[1].startswith("False False ")
    assert "ValueError: no luck" in printed[3]
    assert "odd" in printed[4] and "and on" in printed[4]
    assert "UserWarning: odd" in printed[5] and "and on" not in printed[5]
    assert run_programs([Program(["-c", look])], tmp_path) == ([0], [printed[1]])
