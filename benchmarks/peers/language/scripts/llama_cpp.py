"""llama.cpp's own rounding, as its package gguf does it: Q4_0, groups of 32, without data.

Its compiled quantizer (``llama-quantize``) gives the same values for Q4_0; for 3 and 2 bits only that one exists.
"""

# ruff: noqa: E402
# user: begin
from pathlib import Path

import gguf
from safetensors.torch import load_file

TYPES = {4: "Q4_0", 3: "Q3_K", 2: "Q2_K"}


def quantize(folder, samples, bits):
    kind = gguf.GGMLQuantizationType[TYPES[bits]]
    tensors = load_file(Path(folder) / "model.safetensors")
    return {
        name: (gguf.quants.quantize(values.numpy(), kind), kind)
        for name, values in tensors.items()
        if name.endswith("_proj.weight")
    }


# user: end
import torch

from benchmarks.peers.language.solve import Outcome, solve


def outcome(made) -> Outcome:
    """Bytes as they stand in the file, and back."""
    weights = {name: torch.from_numpy(gguf.quants.dequantize(*held)) for name, held in made.items()}
    return Outcome(weights, sum(held.nbytes for held, _ in made.values()))


def quantize_or_explain(folder, samples, bits):
    """The package raises without a message for types that it cannot write."""
    try:
        return quantize(folder, samples, bits)
    except NotImplementedError:
        raise NotImplementedError(
            f"gguf cannot write {TYPES[bits]}; llama.cpp's compiled quantizer can, but its wheels ask for GLIBC 2.38"
        ) from None


if __name__ == "__main__":
    solve("gguf", quantize_or_explain, outcome)
