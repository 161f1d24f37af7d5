"""llama.cpp's own types without data, as ``llama-quantize --pure`` gives them: Q4_0, Q3_K and Q2_K.

The compiled functions are those that the engine xllamacpp holds. Q3_K and Q2_K need rows of a multiple of 256 weights;
for other rows llama.cpp takes IQ4_NL, with groups of 32 weights in 4 bits.
"""

# ruff: noqa: E402
# user: begin
import ctypes
from pathlib import Path

import gguf
import numpy
import xllamacpp.xllamacpp as engine
from safetensors.torch import load_file

TYPES = {4: "Q4_0", 3: "Q3_K", 2: "Q2_K"}


def quantize(folder, samples, bits):
    tensors = load_file(Path(folder) / "model.safetensors")
    named = gguf.GGMLQuantizationType[TYPES[bits]]
    made = {}
    for name, values in tensors.items():
        if name.endswith("_proj.weight"):
            fits = values.shape[1] % gguf.GGML_QUANT_SIZES[named][0] == 0
            kind = named if fits else gguf.GGMLQuantizationType.IQ4_NL
            made[name] = (quantize_rows(values.float().numpy(), kind), kind)
    return made


def quantize_rows(values, kind):
    library = ctypes.CDLL(engine.__file__)
    made = numpy.zeros(gguf.quant_shape_to_byte_shape(values.shape, kind), numpy.uint8)
    pointers = (values.ctypes.data_as(ctypes.c_void_p), made.ctypes.data_as(ctypes.c_void_p))
    sizes = map(ctypes.c_int64, (0, *values.shape))
    library.ggml_quantize_chunk(int(kind), *pointers, *sizes, None)
    return made


# user: end
import torch

from benchmarks.peers.language.solve import Outcome, solve


def outcome(made) -> Outcome:
    """Bytes as they stand in the file, and back."""
    weights = {name: torch.from_numpy(gguf.quants.dequantize(*held)) for name, held in made.items()}
    return Outcome(weights, sum(held.nbytes for held, _ in made.values()))


if __name__ == "__main__":
    solve("gguf", quantize, outcome)
