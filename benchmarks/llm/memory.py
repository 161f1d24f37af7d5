"""How much memory does it take to quantize a 7B model from its folder, block by block?

Writes a folder with the shapes of Llama-2-7B and random weights, but only a few of its 32 blocks, quantizes it
streamed, and reads resident memory behind every block, now and at its peak. What one more block adds is what stays
resident behind the last measured blocks, so the peak for 32 blocks is the last one measured and so much for each of the
others: extrapolated, and called so.

    python -m benchmarks.llm.memory --blocks 5 --out benchmarks/llm/results/memory.json
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.environment import describe, report
from sparsebit.llm import quantize_blocks

BLOCKS = 32
GOAL = 20 * 10**9
PAGE = resource.getpagesize()
SIZES = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}


def write_model(folder: Path, blocks: int) -> None:
    """A folder as ``save_pretrained`` writes it, one shard for each block, in float16."""
    from transformers import LlamaConfig

    LlamaConfig(
        **SIZES, num_hidden_layers=blocks, num_key_value_heads=32, tie_word_embeddings=False
    ).save_pretrained(folder)
    width, hidden, words = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]
    generator = torch.Generator().manual_seed(0)
    places: dict[str, str] = {}

    def write(file: str, shapes: dict[str, tuple[int, ...]]) -> None:
        tensors = {}
        for name, shape in shapes.items():
            tensors[name] = (
                torch.ones(shape, dtype=torch.float16)
                if len(shape) == 1
                else (0.02 * torch.randn(shape, generator=generator)).half()
            )
            places[name] = file
        save_file(tensors, folder / file, metadata={"format": "pt"})

    outside = {"model.embed_tokens.weight": (words, width), "model.norm.weight": (width,)}
    write("model-0.safetensors", {**outside, "lm_head.weight": (words, width)})
    for index in range(blocks):
        path = f"model.layers.{index}"
        shapes: dict[str, tuple[int, ...]] = {
            f"{path}.self_attn.{part}_proj.weight": (width, width) for part in "qkvo"
        }
        shapes |= {f"{path}.mlp.{part}_proj.weight": (hidden, width) for part in ("gate", "up")}
        shapes[f"{path}.mlp.down_proj.weight"] = (width, hidden)
        shapes |= {f"{path}.{part}_layernorm.weight": (width,) for part in ("input", "post_attention")}
        write(f"model-{index + 1}.safetensors", shapes)
    index_file = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_file))


def quantize(folder: str, samples: int, length: int) -> None:
    """What the measured process does; prints the peak behind each block."""
    from sparsebit import llm
    from sparsebit.llm.language_model import Made

    rows: list[dict[str, float]] = []
    before = time.process_time(), time.perf_counter()

    class Watched(llm.LanguageModel):
        """Notes the peak whenever a block is done."""

        def add(self, made: Iterable[Made]) -> None:
            nonlocal before
            super().add(made)
            now = time.process_time(), time.perf_counter()
            rows.append(
                {
                    "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                    "resident_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * PAGE,
                    "packed_bytes": sum(held.nbytes for held in self.weights.values()),
                    "cpu_seconds": now[0] - before[0],
                    "seconds": now[1] - before[1],
                }
            )
            before = now
            print(rows[-1], file=sys.stderr, flush=True)

    quantize_blocks.LanguageModel = Watched  # type: ignore[attr-defined]
    config = {
        "W": {"BIT": 4, "GROUP_SIZE": 128},
        "METHOD": {"gptq": {"steps": 2}},  # a short search for grids, which takes no memory of its own
        "CALIBRATION": {"SAMPLES": samples, "LENGTH": length},
    }
    ids = torch.randint(32000, (samples * length * 2,), generator=torch.Generator().manual_seed(0))
    llm.quantize(folder, ids, config, progress=False)
    print(json.dumps(rows[:-1]), flush=True)  # the last entry is that of embedding and head, left in float


def measure(blocks: int, samples: int, length: int, place: str | None) -> list[dict[str, float]]:
    """One model of so many blocks, in a process of its own."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        write_model(Path(folder), blocks)
        command = [sys.executable, "-m", "benchmarks.llm.memory", "--child", folder]
        command += ["--samples", str(samples), "--length", str(length)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def main() -> None:
    """Measure, extrapolate and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--blocks",
        type=int,
        default=5,
        choices=range(3, BLOCKS + 1),
        metavar="N",
        help="how many are measured (5)",
    )
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--place", help="folder for the temporary model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        quantize(given.child, given.samples, given.length)
        return
    rows = measure(given.blocks, given.samples, given.length, given.place)
    last = rows[-1]
    missing = BLOCKS - len(rows)
    # The first two blocks also fill what is allocated once, such as statistics that later blocks reuse.
    grown = (last["resident_bytes"] - rows[1]["resident_bytes"]) / (len(rows) - 2)
    result = {
        "question": "peak resident memory of quantizing a model of Llama-2-7B's shapes from its folder, streamed",
        "goal_bytes": GOAL,
        "weights": "random, float16, one shard for each block; gptq, 4 bits, groups of 128",
        "calibration": {"samples": given.samples, "length": given.length},
        "measured behind each block": rows,  # cpu_seconds and seconds are of that block alone
        "extrapolated": {
            "blocks": BLOCKS,
            "peak_bytes": last["peak_bytes"] + missing * grown,
            "bytes_by_block": grown,
            "cpu_seconds": sum(row["cpu_seconds"] for row in rows) / len(rows) * BLOCKS,
            "how": "the last measured peak and what each block from the third on left resident; mean time by block",
        },
        **describe(0, ("torch", "transformers")),
    }
    report(result, given.out)


if __name__ == "__main__":
    main()
