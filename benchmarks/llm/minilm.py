"""How much of MiniLM-L6's rank correlation on STS-B is left when its weights have 8, 4 or 3 bits?

The weights are float ones that lie on no grid, unlike those of SmolLM2 as it comes packaged. Only weights inside the
blocks are quantized; activations and embeddings stay in float. GPTQ is measured on sentences of WikiText-2.

    SPARSEBIT_DATA=... python -m benchmarks.llm.minilm --out benchmarks/llm/results/minilm_stsb.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import describe
from benchmarks.tasks.catalog import open_task
from benchmarks.tasks.data import find_file
from benchmarks.tasks.stsb import SentenceEncoder, read_sentences, tokenize
from sparsebit import llm

BITS, METHODS, GROUP = (8, 4, 3), ("rtn", "gptq"), 64
SAMPLES, LENGTH = 64, 128


def main() -> None:
    """Measure every row and write after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit", type=int, help="only so many pairs")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    task = open_task("stsb_minilm")
    encoder: Any = task.model()
    text = read_sentences(find_file(task.folder, "wikitext2_valid.txt"))
    ids = torch.tensor([number for one in tokenize(text[: 12 * SAMPLES]) for number in one])
    floats = task.evaluate(encoder, given.limit).metric
    result: dict[str, Any] = {
        "question": "rank correlation of MiniLM-L6 on the dev pairs of STS-B with fewer bits a weight",
        "how": f"full-range symmetric, groups of {GROUP}; gptq on {SAMPLES} x {LENGTH} tokens of WikiText-2",
        "pairs": given.limit or 1500,
        "rows": {"float": {"spearman": floats}},
        **describe(0, ("torch", "transformers")),
    }
    for bits in BITS:
        for method in METHODS:
            start = time.process_time()
            config = {
                "W": {"BIT": bits, "SCHEME": "full-range", "GROUP_SIZE": GROUP},
                "METHOD": method,
                "CALIBRATION": {"SAMPLES": SAMPLES, "LENGTH": LENGTH},
            }
            made = llm.quantize(encoder.bert, ids, config, progress=False)
            seconds = time.process_time() - start
            found = task.evaluate(SentenceEncoder(made.model), given.limit).metric
            result["rows"][f"w{bits} g{GROUP} {method}"] = {
                "spearman": found,
                "lost": floats - found,
                "bits": made.bits,
                "cpu_seconds": seconds,
            }
            print(bits, method, result["rows"][f"w{bits} g{GROUP} {method}"], flush=True)
            given.out.parent.mkdir(parents=True, exist_ok=True)
            given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
