"""Our file beside the engine's own 4-bit file of the same model: size, speed of prompt and decode, distance from float.

The engine's own files: llama.cpp's Q4_0 (head and embedding included), ONNX Runtime GenAI's model builder (int4, blocks
of 32), optimum-intel with NNCF for OpenVINO (int4, groups of 32, head in int8). OpenVINO also reads our GGUF file.
Speeds are tokens per CPU second of one thread; the files of an engine take turns prompt by prompt in one process, and
a ratio is between neighbours in time.

    python -m benchmarks.llm.engines FLOAT_FOLDER SAVED_FOLDER --text test.txt --work /tmp/engines \\
        --optimum /path/to/optimum-cli --out benchmarks/llm/results/engines.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.environment import describe
from benchmarks.llm.engines import stock_files
from benchmarks.llm.engines.measure_one import DECODED, PROMPT, PROMPTS
from sparsebit import llm
from sparsebit.llm.evaluate.perplexity import log_probabilities
from sparsebit.llm.folders.source import load_module
from sparsebit.llm.tokens import as_ids, read_tokenizer

WINDOWS, LENGTH, COUNT = 2, 128, 64  # texts, their tokens, and how many positions at their end are compared
PARTS = ("prompt", "decode")


def measure(engine: str, *asked: str) -> Any:
    """What ``measure_one`` prints."""
    command = [sys.executable, "-m", "benchmarks.llm.engines.measure_one", engine, *asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    line = next((one for one in done.stdout.splitlines() if one.startswith("RESULT ")), None)
    if line is None:
        raise RuntimeError(f"{engine} with {asked}: {done.stderr[-2000:]}")
    return json.loads(line.removeprefix("RESULT "))


def time_in_turns(engine: str, files: Mapping[str, Path], rounds: int) -> dict[str, dict[str, list[float]]]:
    """For each file its speed at every prompt of every round; a round is a process."""
    found: dict[str, dict[str, list[float]]] = {name: {part: [] for part in PARTS} for name in files}
    for index in range(rounds):
        measured = measure(engine, "speed", str(index), *map(str, files.values()))
        for name, speeds in zip(files, measured, strict=True):
            for part in PARTS:
                found[name][part] += speeds[part]
    return found


def compare_speeds(ours: Sequence[float], stock: Sequence[float]) -> dict[str, float]:
    """The ratio of neighbours: median, least and most.

    Example:
        >>> compare_speeds([2.0, 3.0, 4.0], [2.0, 2.0, 2.0])
        {'median': 1.5, 'least': 1.0, 'most': 2.0}
    """
    ratios = [one / other for one, other in zip(ours, stock, strict=True)]
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)}


def distance(wanted: Tensor, found: Tensor) -> dict[str, float]:
    """Mean divergence in nats, and how often the most likely token is the same."""
    divergence = (wanted.exp() * (wanted - found)).sum(-1).mean()
    agreement = (wanted.argmax(-1) == found.argmax(-1)).double().mean()
    return {"divergence_from_float": float(divergence), "agreement": float(agreement)}


def size_of(path: Path) -> int:
    """Bytes of weights and graph; tokenizers are left out of folders, since GGUF packs its own."""
    if path.is_file():
        return path.stat().st_size
    return sum(
        f.stat().st_size for pattern in ("model.onnx*", "openvino_model.*") for f in path.glob(pattern)
    )


def write_files(
    given: argparse.Namespace, small: llm.LanguageModel, floats: Any
) -> dict[str, dict[str, Path]]:
    """Every file by engine; files that are there already are taken as they are."""
    work: Path = given.work
    found = {
        "llama.cpp": {"ours": work / "ours.gguf", "stock": work / "stock.gguf"},
        "onnxruntime-genai": {
            "ours": work / "ours_genai",
            "ours in float": work / "ours_genai_float",
            "stock": work / "stock_genai",
        },
        "openvino": {
            "ours": work / "ours_openvino",
            "ours from gguf": work / "ours_gguf_openvino",
            "stock": work / "stock_openvino",
        },
    }
    found = {
        engine: {name: path for name, path in files.items() if not given.files or name in given.files}
        for engine, files in found.items()
        if not given.engines or engine in given.engines
    }
    options: dict[str, dict[str, Any]] = {"ours in float": {"rounding_budget": 0.0}}
    formats = {"llama.cpp": "gguf", "onnxruntime-genai": "onnxruntime-genai", "openvino": "openvino"}
    for engine, files in found.items():
        for name, path in files.items():
            if path.exists():
                continue
            if name in ("ours", "ours in float"):
                print(small.export(path, formats[engine], **options.get(name, {})), flush=True)
            elif name == "ours from gguf":
                stock_files.convert_gguf(work / "ours.gguf", path)
            elif engine == "llama.cpp":
                stock_files.write_stock_gguf(floats, small.tokenizer, path)
            elif engine == "openvino":
                stock_files.build_stock_openvino(given.float, path, given.optimum)
            else:
                stock_files.build_stock_genai(given.float, path)
    return found


def main() -> None:
    """Write the files, time them in turns, and measure their distance from float."""
    parser = argparse.ArgumentParser()
    parser.add_argument("float", type=Path)
    parser.add_argument("saved", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--optimum", default="optimum-cli", help="the command that makes OpenVINO's own file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="*", help="only these")
    parser.add_argument("--files", nargs="*", help='only these, "stock" among them')
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    floats, tokenizer = load_module(given.float), read_tokenizer(given.float)
    small = llm.LanguageModel.load(given.saved)
    windows = as_ids(given.text, tokenizer)[-WINDOWS * LENGTH :].view(WINDOWS, LENGTH)
    with torch.no_grad():
        wanted, in_torch = (
            log_probabilities(one, windows)[:, -COUNT:].flatten(0, 1).double()
            for one in (floats, small.model)
        )
    torch.save({"windows": windows, "count": COUNT}, given.work / "ids.pt")
    files = write_files(given, small, floats)
    result: dict[str, Any] = {
        "question": "our file beside the engine's own 4-bit file of the same model",
        "note": "SmolLM2-135M's float weights lie on a 4-bit affine grid with groups of 32",
        "how": f"{PROMPTS} prompts of {PROMPT} tokens and {DECODED} decoded in each process, rounds as given, "
        f"one thread, tokens per CPU second; distances over {WINDOWS * COUNT} positions",
        "bits": small.bits,
        "in_torch": distance(wanted, in_torch),
        "rounds": {},
        "engines": {},
        **describe(0, ("torch", "transformers", "xllamacpp", "onnxruntime-genai", "openvino", "gguf")),
    }
    if given.out.exists():  # engines that were measured before stay
        earlier = json.loads(given.out.read_text())
        result |= {key: earlier[key] for key in ("rounds", "engines")}
    for engine, every in files.items():
        speeds = time_in_turns(engine, every, given.rounds)
        rows = {}
        for name, path in every.items():
            measure(engine, "predict", str(given.work / "ids.pt"), str(given.work / "found.pt"), str(path))
            found = torch.load(given.work / "found.pt", weights_only=True).double()
            rows[name] = {
                "bytes": size_of(path),
                **{f"{part}_tokens_per_cpu_second": statistics.median(speeds[name][part]) for part in PARTS},
                **distance(wanted, found),
            }
            for part in PARTS:
                rows[name][f"{part}_over_stock"] = compare_speeds(speeds[name][part], speeds["stock"][part])
            print(engine, name, rows[name], flush=True)
        result["engines"][engine], result["rounds"][engine] = rows, given.rounds
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
