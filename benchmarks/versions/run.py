"""Is this version as fast as another one?

    git worktree add /tmp/other COMMIT && python -m benchmarks.versions.run --other /tmp/other --output result.json

For each question both trees have a process of their own, on the same core and with one thread. They answer in turns,
once each, the first one changing: whatever else the machine does slows both down alike. Two processes of one tree may
differ by 8 %, by where their memory is, so the processes are started anew several times. The figure is the median of
the ratios of neighbours (under 1: this tree is faster), once by the clock and once of the processor's time, which other
jobs disturb less.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.environment import describe
from benchmarks.versions.questions import QUESTIONS

ROOT = Path(__file__).resolve().parents[2]


class Tree:
    """The process that answers one question with the code of one tree."""

    def __init__(self, question: str, tree: Path, core: int, folder: str) -> None:
        self.question, self.tree = question, tree
        environment = {
            **os.environ,
            "PYTHONPATH": str(tree),
            "OMP_NUM_THREADS": "1",
            "QUESTION_FOLDER": folder,
        }
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("questions.py")), question],
            env=environment,
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        )
        self._read("ready")

    def _read(self, word: str) -> str:
        assert self.process.stdout is not None and self.process.stderr is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word)
        raise RuntimeError(f"{self.question} in {self.tree}: {self.process.stderr.read()[-2000:]}")

    def ask(self) -> tuple[float, ...]:
        """The seconds of one answer, by the clock and of the processor."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return tuple(map(float, self._read("seconds").split()))

    def end(self) -> None:
        """Let it go."""
        self.process.communicate()


def ask_both(
    question: str, other: Path, rounds: int, core: int
) -> list[tuple[tuple[float, ...], tuple[float, ...]]]:
    """The seconds of both trees in turns, each in one new process."""
    with tempfile.TemporaryDirectory() as folder:
        trees = [Tree(question, tree, core, folder) for tree in (ROOT, other)]
        pairs = []
        for number in range(rounds):
            order = trees if number % 2 == 0 else trees[::-1]
            seconds = {tree: tree.ask() for tree in order}
            pairs.append((seconds[trees[0]], seconds[trees[1]]))
        for tree in trees:
            tree.end()
    return pairs


def compare(question: str, other: Path, rounds: int, processes: int, core: int) -> dict[str, Any]:
    """The figure of one question."""
    try:
        each = -(-rounds // processes)
        pairs = [pair for _ in range(processes) for pair in ask_both(question, other, each, core)]
    except RuntimeError as error:
        return {"question": question, "error": str(error)}
    ratios, processor = ([new[clock] / old[clock] for new, old in pairs] for clock in (0, 1))
    tenths = statistics.quantiles(ratios, n=10, method="inclusive")
    return {
        "question": question,
        "seconds": round(statistics.median(new[0] for new, _ in pairs), 4),
        "other seconds": round(statistics.median(old[0] for _, old in pairs), 4),
        "processor ratio": round(statistics.median(processor), 3),
        "ratio": round(statistics.median(ratios), 3),
        "10 %": round(tenths[0], 3),
        "90 %": round(tenths[-1], 3),
        "rounds": len(pairs),
        "processes": processes,
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", nargs="*", help=f"some of: {', '.join(QUESTIONS)}")
    parser.add_argument("--other", type=Path, required=True, help="the root of the other tree")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--processes", type=int, default=5, help="of each tree, one after the other")
    parser.add_argument("--jobs", type=int, default=1, help="questions at a time, each on a core of its own")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    questions = arguments.questions or list(QUESTIONS)
    cores = sorted(os.sched_getaffinity(0))
    rows: list[dict[str, Any]] = []
    if arguments.questions and arguments.output and arguments.output.exists():  # the others' rows stay
        rows = json.loads(arguments.output.read_text(encoding="utf-8"))["rows"]
        rows = [row for row in rows if row["question"] not in questions]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for row in pool.map(
            lambda place: compare(
                questions[place],
                arguments.other,
                arguments.rounds,
                arguments.processes,
                cores[place % len(cores)],
            ),
            range(len(questions)),
        ):
            rows.append(row)
            print(row, flush=True)
            if arguments.output:  # after each: a run that is stopped keeps its rows
                result = {"environment": describe(0, ("torch", "numpy", "onnx", "onnxruntime")), "rows": rows}
                arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
