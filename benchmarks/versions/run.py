"""Is this version as fast as another one?

    git worktree add /tmp/other COMMIT && python -m benchmarks.versions.run --other /tmp/other --output result.json

The two trees answer each question in turns, each time in a new process on one core; the figure is the median of the
ratios of neighbours (under 1: this tree is faster).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.environment import describe
from benchmarks.versions.questions import QUESTIONS

ROOT = Path(__file__).resolve().parents[2]


def ask(question: str, tree: Path, core: int) -> float:
    """The seconds of one question in one tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("questions.py")), question],
        env=environment,
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    for line in done.stdout.splitlines():
        if line.startswith("seconds "):
            return float(line.split()[1])
    raise RuntimeError(f"{question} in {tree}: {done.stderr[-2000:]}")


def compare(question: str, other: Path, rounds: int, core: int) -> dict[str, Any]:
    """Both trees in turns."""
    try:
        pairs = [(ask(question, ROOT, core), ask(question, other, core)) for _ in range(rounds)]
    except RuntimeError as error:
        return {"question": question, "error": str(error)}
    ratios = [new / old for new, old in pairs]
    return {
        "question": question,
        "seconds": round(statistics.median(new for new, _ in pairs), 4),
        "other seconds": round(statistics.median(old for _, old in pairs), 4),
        "ratio": round(statistics.median(ratios), 3),
        "lowest": round(min(ratios), 3),
        "highest": round(max(ratios), 3),
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("questions", nargs="*", help=f"some of: {', '.join(QUESTIONS)}")
    parser.add_argument("--other", type=Path, required=True, help="the root of the other tree")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=1, help="questions at a time, each on a core of its own")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    questions = arguments.questions or list(QUESTIONS)
    cores = sorted(os.sched_getaffinity(0))
    with ThreadPoolExecutor(arguments.jobs) as pool:
        rows = list(
            pool.map(
                lambda place: compare(
                    questions[place], arguments.other, arguments.rounds, cores[place % len(cores)]
                ),
                range(len(questions)),
            )
        )
    for row in rows:
        print(row)
    if arguments.output:
        result = {"environment": describe(0, ("torch", "numpy", "onnx", "onnxruntime")), "rows": rows}
        arguments.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
