"""What do a 4-bit head and a 4-bit embedding cost, each alone, when one tensor is both?

The blocks stay in float. The tensor is solved once by each method, as the head that it is; then its numbers are put in
the place of the head's weight, of the embedding's, or of both, in a model whose two weights are no longer one.

    SPARSEBIT_DATA=... python -m benchmarks.llm.head MODEL_FOLDER --out benchmarks/llm/results/head.json
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.environment import describe
from benchmarks.llm.run import HELD_OUT, NOTE, SEED
from sparsebit import llm
from sparsebit.llm.evaluate.perplexity import evaluate, log_probabilities
from sparsebit.llm.folders.source import load_module
from sparsebit.llm.tokens import as_ids, read_tokenizer

SAMPLES, LENGTH, MEASURED, WINDOW = 8, 512, 2048, 1024
HEAD = {"BIT": 4, "SCHEME": "full-range", "GROUP_SIZE": 32}
PLACES = {"head": ("output",), "embedding": ("input",), "head and embedding": ("output", "input")}


def solve(model: nn.Module, ids: Tensor, method: str) -> tuple[Tensor, float]:
    """The numbers of the tensor on its grid, and the CPU seconds that took."""
    config = {
        "IGNORE": ["*"],
        "HEAD": HEAD,
        "METHOD": method,
        "CALIBRATION": {"SAMPLES": SAMPLES, "LENGTH": LENGTH, "SEED": SEED},
    }
    start = time.process_time()
    made = llm.quantize(model, None if method == "rtn" else ids, config, progress=False)
    return made.weights["lm_head.weight"].numbers(), time.process_time() - start


def main() -> None:
    """Measure every row, and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", help="a folder that save_pretrained wrote, with its tokenizer")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    model: Any = load_module(given.model)
    text = Path(os.environ.get("SPARSEBIT_DATA", ""), "wikitext2_valid.txt")
    ids = as_ids(text, read_tokenizer(given.model))
    calibration, held_out = ids[:-HELD_OUT], ids[-HELD_OUT:][:MEASURED]
    with torch.no_grad():
        floats = {
            tuple(row.tolist()): log_probabilities(model, row[None]) for row in held_out.view(-1, WINDOW)
        }

    def reference(rows: Tensor) -> Tensor:
        return torch.cat([floats[tuple(row.tolist())] for row in rows])

    result: dict[str, Any] = {
        "question": "divergence from float of a 4-bit head and a 4-bit embedding, blocks in float",
        "note": NOTE,
        "how": f"full-range, groups of 32; {SAMPLES} x {LENGTH} tokens of calibration, {MEASURED} measured",
        "rows": [],
        **describe(SEED, ("torch", "transformers")),
    }
    for method in ("rtn", "gptq"):
        numbers, seconds = solve(model, calibration, method)
        original = model.get_input_embeddings().weight.data
        for place, parts in PLACES.items():
            for part in ("output", "input"):
                layer = getattr(model, f"get_{part}_embeddings")()
                layer.weight = nn.Parameter(numbers if part in parts else original, requires_grad=False)
            found = evaluate(model, held_out, reference=reference, length=WINDOW, batch=1)
            row = {"what": place, "method": method, **asdict(found), "solve_cpu_seconds": seconds}
            result["rows"].append(row)
            print(row, flush=True)
        model.get_input_embeddings().weight = model.get_output_embeddings().weight = nn.Parameter(
            original, requires_grad=False
        )
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
