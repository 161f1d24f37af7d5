"""Files in their engine, in a process of its own: prints a JSON object behind the word RESULT.

python -m benchmarks.llm.engines.measure_one ENGINE speed SEED PATH...
python -m benchmarks.llm.engines.measure_one ENGINE predict IDS.pt OUT.pt PATH
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.llm.engines.runners import RUNNERS, Runner, Speed

PROMPT, DECODED, PROMPTS = 64, 48, 5


def speed(runners: Sequence[Runner], seed: int) -> list[dict[str, list[float]]]:
    """For each file its speeds over a few prompts, behind one that warms up.

    The files take turns prompt by prompt, and begin in turn: what else the machine does meets all of them alike.
    """
    generator = np.random.default_rng(seed)
    found: list[list[Speed]] = [[] for _ in runners]
    for number in range(PROMPTS + 1):
        prompt = generator.integers(100, 40000, PROMPT).tolist()
        for place in range(len(runners)):
            index = (place + number) % len(runners)
            found[index].append(runners[index].time(prompt, DECODED))
    return [
        {"prompt": [one.prompt for one in speeds[1:]], "decode": [one.decode for one in speeds[1:]]}
        for speeds in found
    ]


def main() -> None:
    """Measure what the command line asks for."""
    torch.set_num_threads(1)
    engine, what, *rest = sys.argv[1:]
    if what == "speed":
        seed, *paths = rest
        result = speed([RUNNERS[engine](Path(path)) for path in paths], int(seed))
    else:
        ids, out, path = rest
        runner, asked = RUNNERS[engine](Path(path)), torch.load(ids, weights_only=True)
        rows = [runner.log_probabilities(row.tolist(), int(asked["count"])) for row in asked["windows"]]
        torch.save(torch.cat(rows).float(), out)
        result = []
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
