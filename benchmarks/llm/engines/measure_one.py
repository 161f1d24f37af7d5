"""One file in its engine, in a process of its own: prints a JSON object behind the word RESULT.

python -m benchmarks.llm.engines.measure_one ENGINE PATH speed SEED
python -m benchmarks.llm.engines.measure_one ENGINE PATH predict IDS.pt OUT.pt
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

from benchmarks.llm.engines.runners import RUNNERS, Runner

PROMPT, DECODED, PROMPTS = 64, 48, 3


def speed(runner: Runner, seed: int) -> dict[str, list[float]]:
    """Speeds over a few prompts, behind one that warms up."""
    generator = np.random.default_rng(seed)
    found = [
        runner.time(generator.integers(100, 40000, PROMPT).tolist(), DECODED) for _ in range(PROMPTS + 1)
    ]
    return {
        "prompt": [one.prompt for one in found[1:]],
        "decode": [one.decode for one in found[1:]],
    }


def main() -> None:
    """Measure what the command line asks for."""
    torch.set_num_threads(1)
    engine, path, what, *rest = sys.argv[1:]
    runner = RUNNERS[engine](Path(path))
    if what == "speed":
        result = speed(runner, int(rest[0]))
    else:
        asked = torch.load(rest[0], weights_only=True)
        rows = [runner.log_probabilities(row.tolist(), int(asked["count"])) for row in asked["windows"]]
        torch.save(torch.cat(rows).float(), rest[1])
        result = {}
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
