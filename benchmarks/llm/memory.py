"""How much memory does it take to quantize a 7B model from its folder, block by block?

Writes a folder with the shapes of Llama-2-7B and random weights, but only a few of its 32 blocks, quantizes it
streamed, and measures the peak of resident memory for several numbers of blocks. What one more block adds is its packed
weights; the rest is the same for any number, so the peak for 32 blocks is extrapolated along a line, and called so.

    python -m benchmarks.llm.memory --blocks 2 4 --out benchmarks/llm/results/memory.json
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

BLOCKS = 32
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


def quantize(folder: str, method: str, samples: int, length: int) -> None:
    """What the measured process does; prints its peak and its seconds."""
    from sparsebit import llm

    config = {
        "W": {"BIT": 4, "GROUP_SIZE": 128},
        "METHOD": method,
        "CALIBRATION": {"SAMPLES": samples, "LENGTH": length},
    }
    ids = None
    if method != "rtn":
        ids = torch.randint(32000, (samples * length * 2,), generator=torch.Generator().manual_seed(0))
    start, spent = time.perf_counter(), time.process_time()
    made = llm.quantize(folder, ids, config, progress=False)
    packed = sum(held.nbytes for held in made.weights.values())
    found = {
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "packed_bytes": packed,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - spent,
    }
    print(json.dumps(found), flush=True)


def measure(blocks: int, method: str, samples: int, length: int, place: str | None) -> dict[str, Any]:
    """One model of so many blocks, in a process of its own."""
    with tempfile.TemporaryDirectory(dir=place) as folder:
        write_model(Path(folder), blocks)
        command = [sys.executable, "-m", "benchmarks.llm.memory", "--child", folder]
        command += ["--method", method, "--samples", str(samples), "--length", str(length)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {"blocks": blocks, **json.loads(done.stdout.splitlines()[-1])}


def main() -> None:
    """Measure, extrapolate and write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, nargs="+", default=[2, 4], help="how many blocks are measured")
    parser.add_argument("--method", default="gptq")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--place", help="folder for the temporary model")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        quantize(given.child, given.method, given.samples, given.length)
        return
    rows = [measure(n, given.method, given.samples, given.length, given.place) for n in given.blocks]
    per_block = (rows[-1]["peak_bytes"] - rows[0]["peak_bytes"]) / max(
        rows[-1]["blocks"] - rows[0]["blocks"], 1
    )
    result = {
        "question": "peak resident memory of quantizing a model of Llama-2-7B's shapes from its folder, streamed",
        "weights": "random, float16, one shard for each block",
        "config": {
            "bits": 4,
            "group_size": 128,
            "method": given.method,
            "samples": given.samples,
            "length": given.length,
        },
        "measured": rows,
        "extrapolated": {
            "blocks": BLOCKS,
            "peak_bytes": rows[-1]["peak_bytes"] + per_block * (BLOCKS - rows[-1]["blocks"]),
            "cpu_seconds": rows[-1]["cpu_seconds"] / rows[-1]["blocks"] * BLOCKS,
            "how": "along a line through the first and the last measured peak; seconds per block times blocks",
        },
        "torch": torch.__version__,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
    }
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
