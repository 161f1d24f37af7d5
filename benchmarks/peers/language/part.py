"""Weight-only quantization of a language model: every tool that has it, on the same tokens, judged by one function.

A row is solved in the peer's own environment and judged in ours. Both results are kept in the work folder, so a run
that was stopped goes on where it was; a row is measured again when its script or the protocol changed. With ONLY_KEPT=1
in the environment nothing is measured, and rows that are not there yet say so.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.language import protocol
from benchmarks.peers.language.prepare import float_folder, save_tokens
from benchmarks.peers.row import NOT_YET, Column, Options, Row, count_lines, failed_row
from benchmarks.peers.venv import ensure, run_script

HERE = Path(__file__).parent
TITLE = "Language models: weights in 4, 3 and 2 bits"
COLUMNS = (
    Column(key="perplexity", heading="perplexity", better="lower"),
    Column(key="divergence", heading="KL to float", better="lower", digits=3),
    Column(key="agreement", heading="same next token, %", better="higher", digits=1),
    Column(key="bits", heading="bits held per weight"),
    Column(key="cpu_seconds", heading="CPU s", better="lower", digits=0),
    Column(key="peak_mb", heading="peak MB", better="lower", digits=0),
)
CHART = "divergence"
CALIBRATION = {"samples": protocol.SAMPLES, "length": protocol.LENGTH, "seed": protocol.SEED}
EVALUATION = {
    "tokens": protocol.HELD_OUT,
    "window": protocol.WINDOW,
    "from": f"the first of the last {protocol.RESERVED} tokens of wikitext-2's validation text",
}
LEARNING = {"mini_batches_per_block": protocol.STEPS, "sequences_per_mini_batch": protocol.SEQUENCES}
PROTOCOL: dict[str, Any] = {
    "model": f"{protocol.MODEL}; {protocol.NOTE}",
    "calibration": f"{protocol.SAMPLES} sequences of {protocol.LENGTH} tokens, seed {protocol.SEED}",
    "evaluation": f"{protocol.HELD_OUT} tokens in windows of {protocol.WINDOW}, {EVALUATION['from']}",
    "learning": f"{protocol.STEPS} mini-batches of {protocol.SEQUENCES} sequence for each block, or as many sequences",
    "time": "CPU seconds of one thread, from the float folder to the quantized model, imports not counted",
    "bits": "what the tool holds in memory or in its file for each weight, scales and zero points counted",
}
WEIGHTS = 106_168_320  # in the 210 linear layers of the blocks
METHODS = {  # by script: what is done, as the table names it
    "sparsebit": "g64 affine, GPTQ",
    "sparsebit_bfloat16": "g64 affine, GPTQ in bfloat16",
    "sparsebit_fast": "g64 affine, GPTQ, fast setting",
    "sparsebit_tuned": "g64 affine, tuned after GPTQ",
    "llm_compressor": "g64 affine, GPTQ",
    "auto_round": "g64 affine, signed rounding",
    "gptqmodel": "g64 symmetric, GPTQ",
    "hqq": "g64 affine, no data",
    "torchao": "g64 affine, no data",
    "optimum_quanto": "g96 affine, no data",
    "bitsandbytes": "g64 NormalFloat, no data",
    "llama_cpp": "its own types, no data",
}
OURS = tuple(name for name in METHODS if name.startswith("sparsebit"))
SCRIPTS = {"sparsebit": OURS} | {name: (name,) for name in METHODS if name not in OURS}  # by peer
PEERS = ("float", *SCRIPTS)
# Every other script is asked for 4, 3 and 2 bits; a width that it does not have is a row with its own error.
WIDTHS = {"sparsebit_fast": (3, 2)}


def measure(peer: str, options: Options) -> list[Row]:
    """The rows of one peer; a setting that fails is a row with the reason."""
    if peer == "float":
        found = judge("float", None, options)
        measures = {"perplexity": found["perplexity"], "divergence": 0.0, "agreement": 100.0, "bits": 32.0}
        return [
            Row(
                peer=peer,
                version="",
                model=protocol.MODEL,
                setting="float32",
                measures=measures,
                lines=None,
            )
        ]
    scripts = [(name, bits) for name in SCRIPTS[peer] for bits in WIDTHS.get(name, (4, 3, 2))]
    return [row(peer, name, bits, options) for name, bits in scripts if options.wants(setting_of(name, bits))]


def setting_of(name: str, bits: int) -> str:
    """A script at one width, as the table names it."""
    return f"W{bits}, {METHODS[name]}"


def row(peer: str, name: str, bits: int, options: Options) -> Row:
    """One script at one width."""
    setting = setting_of(name, bits)
    try:
        solved = solve(peer, name, bits, options)
        found = judge(f"{name}_{bits}", weights_of(name, bits, options), options)
    except Exception as error:  # another tool's failure is a result, not the end of the run
        return failed_row(peer, protocol.MODEL, setting, f"{error}")
    measures = {
        "perplexity": found["perplexity"],
        "divergence": found["divergence"],
        "agreement": 100 * found["agreement"],
        "bits": 8 * solved["stored_bytes"] / WEIGHTS,
        "cpu_seconds": solved["cpu_seconds"],
        "peak_mb": solved["peak_mb"],
    }
    return Row(
        peer=peer,
        version=solved["version"],
        model=protocol.MODEL,
        setting=setting,
        measures=measures,
        lines=count_lines(script_of(name)),
    )


def script_of(name: str) -> Path:
    """The file with the lines a user writes."""
    return HERE / "scripts" / f"{name}.py"


def weights_of(name: str, bits: int, options: Options) -> Path:
    """Where a script leaves what the quantized model computes with."""
    return options.work / f"{name}_{bits}.safetensors"


def tokens_of(options: Options) -> Path:
    """The tokens of all rows, made where they are not there yet."""
    path = options.work / f"tokens_{protocol.SAMPLES}_{protocol.HELD_OUT}.safetensors"
    if not path.exists():
        save_tokens(float_folder(), Path(os.environ["SPARSEBIT_DATA"]) / "wikitext2_valid.txt", path)
    return path


def solve(peer: str, name: str, bits: int, options: Options) -> dict[str, Any]:
    """Quantize in the peer's environment: version, CPU seconds, peak memory and bytes; or as it was before."""
    script = script_of(name)

    def run() -> dict[str, Any]:
        python = Path(sys.executable)
        if peer != "sparsebit":
            python = ensure(options.venvs / "language", peer, HERE / "requirements" / f"{peer}.txt")
        arguments = (float_folder(), tokens_of(options), bits, weights_of(name, bits, options))
        return run_script(python, script, *map(str, arguments), threads=options.threads, timeout=7200)

    given = script.read_text(encoding="utf-8"), CALIBRATION, LEARNING
    return _kept(options.work / f"{name}_{bits}.solved.json", given, run)


def judge(label: str, weights: Path | None, options: Options) -> dict[str, Any]:
    """Perplexity, divergence and agreement of weights in a file, or of the float model; or as it was before."""

    def run() -> dict[str, Any]:
        memory = options.work / f"float_hidden_{protocol.HELD_OUT}.safetensors"
        given = (float_folder(), tokens_of(options), weights or "float", memory)
        module = "benchmarks.peers.language.score"
        return run_script(
            Path(sys.executable), module, *map(str, given), threads=options.threads, timeout=7200
        )

    solved = weights.stat().st_mtime if weights else None
    return _kept(options.work / f"{label}.judged.json", (solved, EVALUATION), run)


def _kept(path: Path, given: tuple[Any, ...], run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``run`` gives, kept in a file for as long as what it was given is the same."""
    key = hashlib.sha256(json.dumps(given).encode()).hexdigest()
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if kept["key"] == key:
            return kept
    if os.environ.get("ONLY_KEPT"):
        raise RuntimeError(f"{NOT_YET}: this run only collected what was there")
    kept = run() | {"key": key}
    path.write_text(json.dumps(kept), encoding="utf-8")
    return kept
