"""File formats of engines, one module each. A grid is written bit for bit, or an error names the layer and setting."""

from sparsebit.llm.formats.compressed_tensors import CompressedTensors
from sparsebit.llm.formats.format import FORMATS, Format, FormatRefusal, WeightKind, require_exact
from sparsebit.llm.formats.gguf.gguf_file import Gguf
from sparsebit.llm.formats.gptq import GptqV1
from sparsebit.llm.formats.onnxruntime_genai import GenAIFolder
from sparsebit.llm.formats.openvino import OpenVinoFolder

__all__ = [
    "FORMATS",
    "CompressedTensors",
    "Format",
    "FormatRefusal",
    "GenAIFolder",
    "Gguf",
    "GptqV1",
    "OpenVinoFolder",
    "WeightKind",
    "require_exact",
]
