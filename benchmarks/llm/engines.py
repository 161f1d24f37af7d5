"""Our file beside the engine's own 4-bit file of the same model: size, decode speed, distance from float.

llama.cpp's own file is Q4_0 as ``llama-quantize`` makes it, by the package gguf, head and embedding included. That of
ONNX Runtime GenAI comes from its model builder (int4, blocks of 32). Speeds are tokens per CPU second of one thread,
medians of runs that take turns, so that a busy machine slows both alike.

    python -m benchmarks.llm.engines FLOAT_FOLDER SAVED_FOLDER --text test.txt --work /tmp/engines \\
        --out benchmarks/llm/results/engines.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.environment import describe
from sparsebit import llm
from sparsebit.llm.engines import llama_cpp
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.onnxruntime_genai import OnnxRuntimeGenAI
from sparsebit.llm.evaluate.perplexity import log_probabilities
from sparsebit.llm.formats.gguf import add_settings, row_order
from sparsebit.llm.formats.gguf_tokenizer import add_tokenizer
from sparsebit.llm.source import load_module
from sparsebit.llm.tokens import as_ids, read_tokenizer

PROMPT, DECODED, POSITIONS = 64, 48, 24


def write_stock_gguf(model: Any, tokenizer: Any, path: Path) -> None:
    """Every matrix in Q4_0 as ggml's reference rounds it, everything else in float32."""
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(2)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_settings(writer, config)
    add_tokenizer(writer, tokenizer, config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    kind = gguf.GGMLQuantizationType.Q4_0
    for name, tensor in model.named_parameters():  # a tied head is named once
        rows = row_order(name, config)
        values = (tensor if rows is None else tensor[rows]).detach().float().contiguous().numpy()
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if values.ndim == 2:
            writer.add_tensor(stored, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def build_stock_genai(source: Path, path: Path) -> None:
    """What ONNX Runtime GenAI's own builder makes."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(path)]
    command += [
        "-p",
        "int4",
        "-e",
        "cpu",
        "-c",
        str(path.parent / "cache"),
        "--extra_options",
        "block_size=32",
    ]
    subprocess.run(command, check=True, capture_output=True)


def time_llama_cpp(files: dict[str, Path], repeats: int) -> dict[str, list[float]]:
    """Tokens per CPU second of each file, in turns; the prompt's own time is measured alone and taken off."""
    import xllamacpp

    servers = {}
    for name, path in files.items():
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
        parameters.n_ctx, parameters.n_parallel = 512, 1
        servers[name] = xllamacpp.Server(parameters)

    def spend(name: str, prompt: list[int], count: int) -> float:
        start = time.process_time()
        servers[name].handle_completions(
            {
                "prompt": prompt,
                "n_predict": count,
                "ignore_eos": True,
                "temperature": 0.0,
                "cache_prompt": False,
            }
        )
        return time.process_time() - start

    found: dict[str, list[float]] = {name: [] for name in files}
    for turn in range(repeats + 1):
        prompt = np.random.default_rng(turn).integers(100, 40000, PROMPT).tolist()
        for name in files:
            once = spend(name, prompt, 1)
            speed = DECODED / max(spend(name, prompt, DECODED + 1) - once, 1e-9)
            if turn:  # the first turn warms up
                found[name].append(speed)
    return found


def time_genai(folders: dict[str, Path], repeats: int) -> dict[str, list[float]]:
    """Tokens per CPU second of each folder, in turns."""
    import onnxruntime_genai

    models = {}
    one_thread = '{"model":{"decoder":{"session_options":{"intra_op_num_threads":1}}}}'
    for name, path in folders.items():
        config = onnxruntime_genai.Config(str(path))
        config.overlay(one_thread)
        models[name] = onnxruntime_genai.Model(config)
    found: dict[str, list[float]] = {name: [] for name in folders}
    for turn in range(repeats + 1):
        prompt = np.random.default_rng(turn).integers(100, 40000, PROMPT).astype(np.int32)
        for name, model in models.items():
            settings = onnxruntime_genai.GeneratorParams(model)
            settings.set_search_options(max_length=PROMPT + DECODED + 2, min_length=PROMPT + DECODED + 2)
            generator = onnxruntime_genai.Generator(model, settings)
            generator.append_tokens(prompt[None])
            generator.generate_next_token()
            start = time.process_time()
            for _ in range(DECODED):
                generator.generate_next_token()
            if turn:
                found[name].append(DECODED / (time.process_time() - start))
    return found


def distance(engine: Engine, path: Path, ids: torch.Tensor, wanted: torch.Tensor) -> tuple[float, float]:
    """Mean divergence from the float model in nats, and how often the most likely token is the same."""
    found = engine.open(path).log_probabilities(ids).double()
    last = wanted[-len(found) :]
    divergence = (last.exp() * (last - found)).sum(-1).mean()
    return float(divergence), float((last.argmax(-1) == found.argmax(-1)).double().mean())


def size_of(path: Path) -> int:
    """Bytes of the weights and the graph; tokenizers are left out of folders, since GGUF packs its own."""
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.glob("model.onnx*"))


def main() -> None:
    """Write the four files, time them in turns, and measure their distance from float."""
    parser = argparse.ArgumentParser()
    parser.add_argument("float", type=Path)
    parser.add_argument("saved", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.work.mkdir(parents=True, exist_ok=True)
    floats, tokenizer = load_module(given.float), read_tokenizer(given.float)
    small = llm.LanguageModel.load(given.saved)
    ids = as_ids(given.text, tokenizer)[-POSITIONS * 4 :][: POSITIONS * 2]
    with torch.no_grad():
        wanted = log_probabilities(floats, ids[None])[0].double()
        in_torch = log_probabilities(small.model, ids[None])[0].double()
    rows: list[dict[str, Any]] = []
    llama_cpp.POSITIONS = POSITIONS  # more than a proof asks for
    engines: list[tuple[Engine, str, str, Any]] = [
        (llama_cpp.LlamaCpp(), "gguf", ".gguf", time_llama_cpp),
        (OnnxRuntimeGenAI(), "onnxruntime-genai", "", time_genai),
    ]
    for engine, format, ending, timer in engines:
        ours, stock = given.work / f"ours{ending}", given.work / f"stock{ending}"
        if not ours.exists():
            small.export(ours, format)
        if not stock.exists() and ending:
            write_stock_gguf(floats, tokenizer, stock)
        elif not stock.exists():
            build_stock_genai(given.float, stock)
        speeds = timer({"ours": ours, "stock": stock}, given.repeats)
        for name, path in (("ours", ours), ("stock", stock)):
            divergence, agreement = distance(engine, path, ids, wanted)
            rows.append(
                {
                    "engine": engine.name,
                    "file": name,
                    "bytes": size_of(path),
                    "tokens_per_cpu_second": statistics.median(speeds[name]),
                    "range": [min(speeds[name]), max(speeds[name])],
                    "divergence_from_float": divergence,
                    "agreement": agreement,
                }
            )
            print(rows[-1], flush=True)
    result = {
        "question": "our file beside the engine's own 4-bit file of the same model",
        "note": "SmolLM2-135M's float weights lie on a 4-bit affine grid with groups of 32",
        "bits": small.bits,
        "in_torch": float((wanted.exp() * (wanted - in_torch)).sum(-1).mean()),
        "positions": len(ids),
        "rows": rows,
        **describe(0, ("torch", "transformers", "xllamacpp", "onnxruntime-genai", "gguf")),
    }
    if given.out:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
