"""What does GPTQ cost on one thread, beside another commit?

The first blocks of a model are quantized to 3 bits (groups of 64, with zero points) by this tree and by another one, in
turn and each in a process of its own, and the processor time of ``llm.quantize`` is taken; by this tree also with the
settings that make it faster. What is done once for the model is part of it, so the estimate for all blocks is a little
too high.

Run from the repository root: ``python -m benchmarks.llm.solve_time MODEL_FOLDER OTHER_TREE``, where OTHER_TREE is made
with ``git worktree add``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.environment import describe

CONFIG: dict[str, Any] = {"W": {"BIT": 3, "SCHEME": "affine", "GROUP_SIZE": 64}}
FAST = {"DTYPE": "bfloat16"}
CHILD = """
import json, sys, time
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM
from sparsebit import llm
from sparsebit.llm.tokens import as_ids, read_tokenizer
torch.set_num_threads(1)
asked = json.loads(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(asked["model"], dtype=torch.float32).eval()
total = len(model.model.layers)
model.model.layers = model.model.layers[: asked["blocks"]]
model.config.num_hidden_layers = asked["blocks"]
ids = as_ids(Path(asked["text"]), read_tokenizer(asked["model"]))
start = time.process_time()
made = llm.quantize(model, ids, asked["config"], progress=False)
seconds = time.process_time() - start
loss = sum(one.loss for one in made.records) / len(made.records)
print(json.dumps({"cpu_seconds": seconds, "mean_loss": loss, "blocks_of_model": total}))
"""


def measure(tree: Path, asked: dict[str, Any]) -> dict[str, Any]:
    """One run in a process of its own, with the sparsebit of a tree."""
    environment = os.environ | {"PYTHONPATH": os.fspath(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", CHILD, json.dumps(asked)]
    done = subprocess.run(command, env=environment, cwd=tree, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def commit_of(tree: Path) -> str:
    """The commit that is checked out in a tree."""
    command = ["git", "-C", os.fspath(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> None:
    """Measure in turn, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="a folder that save_pretrained wrote, with its tokenizer")
    parser.add_argument("other", type=Path, help="a work tree of the other commit")
    parser.add_argument(
        "--text", default=os.path.join(os.environ.get("SPARSEBIT_DATA", ""), "wikitext2_valid.txt")
    )
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--samples", type=int, default=16, help="of 512 tokens")
    parser.add_argument("--out", default="benchmarks/llm/results/solve_time.json")
    options = parser.parse_args()
    text = {"SAMPLES": options.samples, "LENGTH": 512, "SEED": 0}
    other, here = options.other.resolve(), Path.cwd()
    cases: dict[str, tuple[Path, dict[str, Any]]] = {
        "other": (other, {"METHOD": "gptq", "CALIBRATION": text}),
        "here": (here, {"METHOD": "gptq", "CALIBRATION": text}),
        "here, bfloat16": (here, {"METHOD": "gptq", "CALIBRATION": text | FAST}),
        "here, bfloat16, follow 0": (here, {"METHOD": {"gptq": {"follow": 0}}, "CALIBRATION": text | FAST}),
    }
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, (tree, config) in cases.items():
            asked = {"model": options.model, "text": options.text, "blocks": options.blocks}
            found[name].append(measure(tree, asked | {"config": CONFIG | config}))
            print(name, found[name][-1], flush=True)
    result: dict[str, Any] = {**describe(0, ("torch", "transformers")), "threads": 1}
    result |= {"model": Path(options.model).name, "blocks": options.blocks, "rows": {}}
    base = [one["cpu_seconds"] for one in found["other"]]
    for name, (tree, config) in cases.items():
        per_block = [one["cpu_seconds"] / options.blocks for one in found[name]]
        result["rows"][name] = {
            "commit": commit_of(tree),
            "config": CONFIG | config,
            "cpu_seconds_per_block": per_block,
            "estimate_for_all_blocks": statistics.median(per_block) * found[name][0]["blocks_of_model"],
            "over_other": statistics.median(
                one["cpu_seconds"] / beside for one, beside in zip(found[name], base, strict=True)
            ),
            "mean_loss": found[name][0]["mean_loss"],
        }
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for name, row in result["rows"].items():
        print(f"{name}: {row['over_other']:.3f}, {row['estimate_for_all_blocks']:.0f} s for all blocks")


if __name__ == "__main__":
    main()
