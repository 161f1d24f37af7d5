"""The 4-bit file that each engine's own tools make of a float model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from sparsebit.llm.formats.gguf.families import FAMILIES
from sparsebit.llm.formats.gguf.rotary import add_rotary
from sparsebit.llm.formats.gguf.settings import add_settings
from sparsebit.llm.formats.gguf.tensors import row_order
from sparsebit.llm.formats.gguf.tokenizer import add_tokenizer


def write_stock_gguf(model: Any, tokenizer: Any, path: Path) -> None:
    """Every matrix in Q4_0 as ggml's reference rounds it (``llama-quantize --pure``), everything else in float32."""
    import gguf

    config, family = model.config, FAMILIES["llama"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(2)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_settings(writer, config, family)
    add_rotary(writer, model, family)
    add_tokenizer(writer, tokenizer, config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    kind = gguf.GGMLQuantizationType.Q4_0
    for name, tensor in model.named_parameters():  # a tied head is named once
        rows = row_order(name, config, family)
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
    """What ONNX Runtime GenAI's own builder makes: int4, blocks of 32, accuracy level 4, head and embedding too."""
    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", str(source), "-o", str(path)]
    command += ["-p", "int4", "-e", "cpu", "-c", str(path.parent / "cache")]
    subprocess.run([*command, "--extra_options", "block_size=32"], check=True, capture_output=True)


def build_stock_openvino(source: Path, path: Path, optimum: str) -> None:
    """What ``optimum-cli export openvino`` makes with NNCF: symmetric int4, groups of 32, the head in int8.

    ``optimum`` is the path of that command: optimum-intel asks for an older transformers, so it has an environment of
    its own.
    """
    command = [optimum, "export", "openvino", "-m", str(source), "--task", "text-generation-with-past"]
    command += ["--weight-format", "int4", "--group-size", "32", "--sym", "--ratio", "1.0", str(path)]
    subprocess.run(command, check=True, capture_output=True)


def convert_gguf(source: Path, path: Path) -> None:
    """A GGUF file as ``openvino_genai.LLMPipeline`` reads it, saved as OpenVINO's own graph."""
    import openvino_genai

    path.mkdir()
    copy = path / source.name
    copy.symlink_to(source.resolve())  # the graph is written beside the file
    openvino_genai.LLMPipeline(str(copy), "CPU", enable_save_ov_model=True)
    copy.unlink()
