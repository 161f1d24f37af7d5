"""GPTQ's own format, version 1: what vLLM, SGLang, transformers (with gptqmodel) and ONNX Runtime's builder load.

A linear layer ``n`` of [out, in] becomes ``n.qweight`` [in * bits / 32, out], packed along the inputs, ``n.scales``
[groups, out] in fp16, ``n.qzeros`` [groups, out * bits / 32], and ``n.g_idx``, the group of each input channel. Zero
points are stored one too small, a habit of the format, so it holds symmetric grids only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.formats.format import (
    FORMATS,
    Refusal,
    by_rows,
    float_state,
    layers_of,
    require_transformers,
    words,
)
from sparsebit.llm.language_model import LanguageModel
from sparsebit.llm.packed.linear import PackedLinear
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import pack_bits


@FORMATS.register("gptq")
class GptqV1:
    """A folder that readers of GPTQ checkpoints load."""

    extension: ClassVar[str] = ""
    engine: ClassVar[Engine | None] = None

    def refusals(self, model: LanguageModel) -> Iterator[Refusal]:
        """Layers with zero points, scales that are not fp16, mixed widths, or sizes that do not fill a word."""
        widths = {(held.grid.code.bits, held.grid.layout.group_size) for _, held in layers_of(model)}
        for name, held in layers_of(model):
            code = held.grid.code
            if "[" in name or not isinstance(model.model.get_submodule(name), PackedLinear):
                yield Refusal(name, "only linear layers are packed", "HEAD.BIT: 0")
            elif code.kind not in ("int", "full") or code.bits not in (2, 3, 4, 8):
                yield Refusal(name, "it holds symmetric integers only", "SCHEME: full-range or symmetric")
            elif held.grid.scale.dtype != torch.float16:
                yield Refusal(name, "its scales are fp16", "SCALE_DTYPE: float16")
            elif len(widths) > 1:
                yield Refusal(name, "all its layers have one width and one group size", "no W.SPECIFIC")
            elif held.shape[0] % 32 or held.shape[1] % 32:
                yield Refusal(name, f"{held.shape} does not fill 32-bit words", "IGNORE: this layer")

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """Weights, config and tokenizer."""
        require_transformers(model, "gptq")
        tensors = {name: tensor.contiguous() for name, tensor in float_state(model.model).items()}
        for name, held in layers_of(model):
            tensors |= {f"{name}.{key}": value for key, value in layer_tensors(held).items()}
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        first = next(iter(model.weights.values()))
        module: Any = model.model
        config = module.config.to_dict()
        config["quantization_config"] = {
            "quant_method": "gptq",
            "bits": first.grid.code.bits,
            "group_size": first.grid.layout.group_size or -1,
            "desc_act": False,
            "sym": True,
            "lm_head": False,
            "checkpoint_format": "gptq",
            "pack_dtype": "int32",
        }
        type(module.config).from_dict(config).save_pretrained(path)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(path)


def layer_tensors(held: PackedTensor) -> dict[str, Tensor]:
    """The tensors of one linear layer."""
    bits, (rows, columns) = held.grid.code.bits, held.shape
    scale, _ = by_rows(held)
    groups = scale.shape[1]
    stored_zero = 2 ** (bits - 1) - 1
    zeros = pack_bits(torch.full((groups, rows), stored_zero, dtype=torch.uint8), bits)
    return {
        "qweight": words(held.bits).T.contiguous(),
        "qzeros": words(zeros),
        "scales": scale.T.contiguous(),
        "g_idx": torch.arange(columns, dtype=torch.int32) // (columns // groups),
    }
