"""Runs programs in processes of their own that find torch and transformers imported, which takes most programs longest.

One process without threads imports them once and is forked for each program. What a program registers, patches or
breaks, no other one sees.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
IMPORTED = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "transformers.models.llama.modeling_llama",
)


class Program(NamedTuple):
    """What stands behind ``python`` on a command line, and the variables it finds beside those of the tests."""

    words: Sequence[str]  # a script, -m and a module, or -c and code; and arguments
    variables: Mapping[str, str] = {}  # PYTHONPATH is the root of the project unless it is among them
    strict: bool = False  # warnings are errors


def run_programs(
    programs: Sequence[Program], folder: Path, timeout: float = 600
) -> tuple[list[int], list[str]]:
    """The exit codes and what was printed; all run at the same time in the folder.

    Programs that do not end in time say where they are.
    """
    outputs = [str(folder / f"output.{number}") for number in range(len(programs))]
    requests = [
        [*program, output, str(folder), {**os.environ, "PYTHONPATH": str(ROOT), **program.variables}]
        for program, output in zip(programs, outputs, strict=True)
    ]
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(requests) + "\n")
    server.stdin.flush()
    ready, _, _ = select.select([server.stdout], [], [], timeout)
    answer = server.stdout.readline() if ready else ""
    if not answer:
        _server.cache_clear()
        os.killpg(server.pid, signal.SIGABRT)
        server.communicate()
    printed = [Path(output).read_text(encoding="utf-8", errors="replace") for output in outputs]
    assert answer, "\n".join(["the programs did not end", *printed])
    return json.loads(answer), printed


@functools.cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forks"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    atexit.register(server.communicate)  # its input ends, and so does it
    return server


def main() -> None:
    """Fork for each program of a request, and answer with their exit codes."""
    faulthandler.enable()
    usual = warnings.filters[:]  # type: ignore[index]
    warnings.simplefilter("error")
    for name in IMPORTED:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(name)
    strict, warnings.filters[:] = warnings.filters[:], usual  # type: ignore[index]
    del sys.path[0]  # the folder of this process, and not of the programs
    for line in sys.stdin:
        children = []
        for request in json.loads(line):
            if not (child := os.fork()):
                warnings.filters[:] = strict if request[2] else usual  # type: ignore[index]
                _become(*request)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), flush=True)


def _become(words: list[str], _: Any, __: Any, output: str, folder: str, variables: dict[str, str]) -> None:
    """Turn this process into that of a program, until it ends."""
    for descriptor, name in ((0, os.devnull), (1, output), (2, output)):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND), descriptor)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    paths = [path for path in variables.get("PYTHONPATH", "").split(os.pathsep) if path]
    script = words[0] not in ("-m", "-c")
    sys.path[:0] = [os.path.dirname(os.path.abspath(words[0])) if script else folder, *paths]
    sys.argv = words if script else [words[0], *words[2:]]
    try:
        if script:
            runpy.run_path(words[0], run_name="__main__")
        elif words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.exit()


if __name__ == "__main__":
    main()
