"""llama.cpp, through the package xllamacpp; the bytes of a file are read by the package gguf."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.rounding import Rounding

POSITIONS = 6  # one call each, so only the last few are asked for

# Architectures that rotate neighbouring channels, and those whose models store query, key and value head by head.
ROTATE_NEIGHBOURS = ("llama", "arcee", "granite", "olmo", "smollm3")
SPLIT_QUERIES = ("gptneox", "falcon")


class LlamaCppFile:
    """A file whose tensors are read here; llama.cpp starts only for predictions."""

    def __init__(self, path: Path) -> None:
        import gguf

        reader = gguf.GGUFReader(path)
        self._tensors = {tensor.name: tensor for tensor in reader.tensors}
        self._dequantize = gguf.quants.dequantize
        said = {key: field.contents() for key, field in reader.fields.items()}
        kind = said["general.architecture"]
        self._heads = (said[f"{kind}.attention.head_count"], said[f"{kind}.attention.head_count_kv"])
        self._architecture = kind
        self.longest: int | None = int(said[f"{kind}.context_length"]) - 1  # and the token it answers with
        self._size = int(said[f"{kind}.vocab_size"])
        architecture = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == kind)
        self._names = gguf.get_tensor_name_map(architecture, said[f"{kind}.block_count"])
        tokens = zip(said["tokenizer.ggml.tokens"], said["tokenizer.ggml.token_type"], strict=True)
        self._spoken = next(
            (
                index
                for index, (text, kind) in enumerate(tokens)
                if kind == 1 and text.isascii() and text.isalnum()
            ),
            0,
        )
        self._path = path

    def weight(self, name: str) -> Tensor:
        """Unpacked by the package gguf, with rows in the order of transformers."""
        name, _, expert = name.removesuffix("]").partition("[")
        if expert:
            return self._expert(name, int(expert))
        stored = self._names.get_name(name, try_suffixes=(".weight",)) or "output.weight"
        if stored == "output.weight" and stored not in self._tensors:
            stored = "token_embd.weight"  # they are tied
        values = self._read(stored)
        for part, heads in zip(("attn_q.weight", "attn_k.weight"), self._heads, strict=True):
            if self._architecture in ROTATE_NEIGHBOURS and stored.endswith(part):
                rows, columns = values.shape
                values = values.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, -1)
        if self._architecture in SPLIT_QUERIES and stored.endswith("attn_qkv.weight"):
            heads, shared = self._heads
            columns = values.shape[1]
            each = values.view(heads + 2 * shared, -1, columns).split([heads, shared, shared])
            groups = [part.unflatten(0, (shared, -1)) for part in each]
            values = torch.cat(groups, 1).reshape(-1, columns)
        return values

    def _expert(self, name: str, index: int) -> Tensor:
        """One matrix of a stack; gate and up are one matrix in the model."""
        if name.endswith("gate_up_proj"):
            down = str(self._names.get_name(name.replace("gate_up_proj", "down_proj")))
            parts = [self._read(f"{down.replace('down', part)}.weight")[index] for part in ("gate", "up")]
            return torch.cat(parts)
        return self._read(f"{self._names.get_name(name)}.weight")[index]

    def _read(self, stored: str) -> Tensor:
        tensor = self._tensors[stored]
        return torch.from_numpy(np.array(self._dequantize(tensor.data, tensor.tensor_type)))

    def rounding(self, name: str) -> Rounding | None:
        """In blocks of 32 with an fp16 scale, before every quantized matrix."""
        return Rounding(32, torch.float16)

    def log_probabilities(self, ids: Tensor) -> Tensor:
        """After each of the last few ids."""
        ends = range(max(len(ids) - POSITIONS, 0) + 1, len(ids) + 1)
        prompts = [ids[:end].tolist() for end in ends]
        rows = ask(self._path, prompts=prompts, size=self._size, spoken=self._spoken)["rows"]
        found = torch.full((len(rows), self._size), -torch.inf, dtype=torch.float64)
        for row, pairs in zip(found, rows, strict=True):
            for index, value in pairs:
                row[index] = value
        return found.log_softmax(-1)  # its sums are in single precision


def token_ids(path: Path, texts: Sequence[str]) -> list[list[int]]:
    """The ids of texts, including the tokens that llama.cpp adds before and after them."""
    return [list(ids) for ids in ask(path, texts=list(texts))["ids"]]


def ask(path: Path, **request: object) -> dict[str, Any]:
    """Run a request in a separate llama.cpp process; llama_cpp_child.py describes requests."""
    child = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("llama_cpp_child.py"))],
        input=json.dumps({"path": str(path), "threads": torch.get_num_threads(), **request}),
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        lines = child.stderr.splitlines()
        said = next((line for line in reversed(lines) if "rror" in line), f"exit code {child.returncode}")
        raise SparsebitError("llama.cpp cannot run the file", got=said[:200], where=str(path))
    answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return answer


# It rounds activations to 8 bits before quantized weights, and keeps keys and values in half precision.
LLAMA_CPP = Engine("llama.cpp", ("gguf", "xllamacpp"), 1e-3, LlamaCppFile, token_ids)
