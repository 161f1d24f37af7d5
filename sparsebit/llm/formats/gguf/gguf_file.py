"""GGUF: one file for llama.cpp and everything built on it, and for OpenVINO.

Quantized matrices become Q4_0, Q4_1 or Q8_0, everything else stays float32. A head that is tied to the embedding is
written once, unless llama.cpp wants it twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.llama_cpp import LLAMA_CPP
from sparsebit.llm.formats.format import FORMATS, FormatRefusal, WeightKind, layers_of
from sparsebit.llm.formats.gguf.blocks import BLOCK, BLOCK_BYTES, block_type, block_type_of
from sparsebit.llm.formats.gguf.families import family_of, require_family
from sparsebit.llm.formats.gguf.rotary import add_rotary, require_rotary
from sparsebit.llm.formats.gguf.settings import add_settings
from sparsebit.llm.formats.gguf.tensors import stored_tensors
from sparsebit.llm.formats.gguf.tokenizer import add_tokenizer
from sparsebit.llm.language_model import LanguageModel
from sparsebit.runtime.packages import require

_FILE_TYPES = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 7}
_SETTING = "BIT: 4 or 8, SCHEME: full-range, GROUP_SIZE: 32, SCALE_DTYPE: float16"


@FORMATS.register("gguf")
class Gguf:
    """A file for llama.cpp."""

    extension: ClassVar[str] = ".gguf"
    engine: ClassVar[Engine] = LLAMA_CPP

    mixes_widths: ClassVar[bool] = True
    mixes_experts: ClassVar[bool] = True

    def refuse(self, layer: str, kind: WeightKind) -> FormatRefusal | None:
        """Weights that no type of block can store, whatever their values."""
        found = block_type_of(kind.code, kind.group_size, kind.shape[1])
        if kind.scale_dtype != torch.float16:
            found = "its scales are fp16"
        if found == "Q4_1":
            found = "with zero points it can store only some scales"
        return None if found in _FILE_TYPES else FormatRefusal(layer, found, _SETTING)

    def nbytes(self, kind: WeightKind) -> int:
        """Blocks of 32 weights with a scale each; fewer bits than four are stored as four."""
        rows, columns = kind.shape
        return rows * columns // BLOCK * BLOCK_BYTES[block_type_of(kind.code, kind.group_size, columns)]

    def refusals(self, model: LanguageModel) -> Iterator[FormatRefusal]:
        """Layers whose numbers no type of block holds exactly, and stacks of experts with more than one type."""
        config: Any = model.model.config
        require_rotary(config, require_family(config))
        stacks: dict[str, list[str]] = {}
        for name, held in layers_of(model):
            kind = block_type(held)
            if kind not in _FILE_TYPES:
                yield FormatRefusal(name, kind, _SETTING)
            elif "[" in name:
                stacks.setdefault(name.partition("[")[0], []).append(kind)
        for name, kinds in stacks.items():
            if len(set(kinds)) > 1:
                yield FormatRefusal(
                    name, "its experts share one type of block", "the same BIT for all experts of a layer"
                )

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """Settings, tokenizer and tensors, through the package ``gguf``."""
        gguf = require("gguf")
        config: Any = model.model.config
        family = family_of(config)
        writer = gguf.GGUFWriter(path, family.architecture)
        kinds = Counter(block_type(held) for held in model.weights.values())
        writer.add_file_type(_FILE_TYPES[kinds.most_common(1)[0][0]])
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        add_settings(writer, config, family)
        add_tokenizer(writer, model.tokenizer, config.vocab_size)
        for name, tensor in add_rotary(writer, model.model, family).items():
            writer.add_tensor(name, tensor.numpy())
        architecture = next(
            key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == family.architecture
        )
        names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
        for name, values, kind in stored_tensors(model, family, names):
            raw = None if kind == "F32" else gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, values.contiguous().cpu().numpy(), raw_dtype=raw)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
