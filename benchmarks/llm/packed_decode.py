"""Does a model with packed weights decode faster than a float model in torch, on one thread of a CPU?

Float32, bfloat16, and the packed model in both: each decodes behind the same prompt, one token at a time with a cache,
in turns. Speeds are tokens per CPU second; a ratio is between neighbours in time.

    python -m benchmarks.llm.packed_decode FLOAT_FOLDER SAVED_FOLDER --out benchmarks/llm/results/packed_decode.json
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import describe, report
from sparsebit import llm
from sparsebit.llm.folders.source import load_module

PROMPT, DECODED = 8, 8


@torch.inference_mode()
def decode(model: Any, prompt: torch.Tensor) -> tuple[float, list[int]]:
    """Tokens per CPU second, and the tokens."""
    out = model(prompt, use_cache=True)
    found = [int(out.logits[0, -1].argmax())]
    start = time.process_time()
    for _ in range(DECODED):
        out = model(torch.tensor([[found[-1]]]), past_key_values=out.past_key_values, use_cache=True)
        found.append(int(out.logits[0, -1].argmax()))
    return DECODED / (time.process_time() - start), found


def main() -> None:
    """Measure in turns and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("float", type=Path)
    parser.add_argument("saved", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    floats = load_module(given.float)
    small = llm.LanguageModel.load(given.saved)
    models: dict[str, Any] = {
        "float32": floats,
        "bfloat16": copy.deepcopy(floats).bfloat16(),
        "packed in float32": small.model,
        "packed in bfloat16": copy.deepcopy(small.model).bfloat16(),
    }
    speeds: dict[str, list[float]] = {name: [] for name in models}
    tokens: dict[str, list[int]] = {}
    for index in range(given.rounds + 1):
        prompt = torch.randint(100, 40000, (1, PROMPT), generator=torch.Generator().manual_seed(index))
        for name in models if index % 2 else reversed(models):
            speed, tokens[name] = decode(models[name], prompt)
            if index:  # the first round warms up
                speeds[name].append(speed)
    result: dict[str, Any] = {
        "question": "decoding with packed weights beside float weights, in torch on one thread of a CPU",
        "how": f"batch 1, {PROMPT} tokens of prompt, {DECODED} decoded, {given.rounds} rounds in turns; per CPU second",
        "bits": small.bits,
        "rows": {},
        **describe(0, ("torch", "transformers")),
    }
    for name, found in speeds.items():
        row: dict[str, Any] = {"tokens_per_cpu_second": statistics.median(found)}
        for other in ("float32", "bfloat16"):
            ratios = [one / base for one, base in zip(found, speeds[other], strict=True)]
            row[f"over_{other}"] = {
                "median": statistics.median(ratios),
                "least": min(ratios),
                "most": max(ratios),
            }
        result["rows"][name] = row
    report(result, given.out)


if __name__ == "__main__":
    main()
