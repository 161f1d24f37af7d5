"""GPTQ's own format, version 1: what vLLM, SGLang, transformers (with gptqmodel) and ONNX Runtime's builder load.

A linear layer ``n`` of [out, in] becomes ``n.qweight`` [in * bits / 32, out], packed along the inputs, ``n.scales``
[groups, out] in fp16, ``n.qzeros`` [groups, out * bits / 32], and ``n.g_idx``, the group of each input channel. By
convention of the format, zero points are stored one too small, so it stores symmetric grids only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.gptqmodel import GPTQMODEL
from sparsebit.llm.formats.checkpoint_names import as_stored, refuse_unsplit, stored_layers
from sparsebit.llm.formats.format import (
    FORMATS,
    FormatRefusal,
    WeightKind,
    by_rows,
    float_state,
    layers_of,
    refuse_by_kind,
    word_bytes,
    words,
    write_pretrained,
)
from sparsebit.llm.language_model import LanguageModel
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import pack_bits


@FORMATS.register("gptq")
class GptqV1:
    """A folder that readers of GPTQ checkpoints load."""

    extension: ClassVar[str] = ""
    engine: ClassVar[Engine] = GPTQMODEL

    mixes_widths: ClassVar[bool] = False
    mixes_experts: ClassVar[bool] = False

    def refuse(self, layer: str, kind: WeightKind) -> FormatRefusal | None:
        """Zero points, scales that are not fp16, and sizes that do not fill a word."""
        if kind.holder in ("embedding", "other"):
            setting = "HEAD.BIT: 0" if kind.holder == "embedding" else "IGNORE: this layer"
            return FormatRefusal(layer, "only linear layers are packed", setting)
        if kind.code.kind not in ("int", "full") or kind.code.bits not in (2, 3, 4, 8):
            setting = "SCHEME: full-range or symmetric, BIT: 2, 3, 4 or 8"
            return FormatRefusal(layer, "it stores only symmetric integers", setting)
        if kind.scale_dtype != torch.float16:
            return FormatRefusal(layer, "its scales are fp16", "SCALE_DTYPE: float16")
        if kind.shape[0] % 32 or kind.shape[1] % 32:
            return FormatRefusal(layer, f"{kind.shape} does not fill 32-bit words", "IGNORE: this layer")
        return None

    def nbytes(self, kind: WeightKind) -> int:
        """Columns, and rows of zero points, are bit streams in 32-bit words; the group of each channel is a word."""
        (rows, columns), bits = kind.shape, kind.code.bits
        of_group = 2 * rows + word_bytes(rows, bits)
        return rows * word_bytes(columns, bits) + kind.groups * of_group + 4 * columns

    def refusals(self, model: LanguageModel) -> Iterator[FormatRefusal]:
        """Layers that are refused by their kind, and all layers if they differ in width or group size."""
        yield from refuse_by_kind(model, self.refuse)
        yield from refuse_unsplit(model)
        widths = {held.grid.code.bits for _, held in layers_of(model)}
        if len(widths) > 1 or len(group_sizes(model)) > 1:
            for name, _ in layers_of(model):
                reason = "all its layers have the same width and group size"
                yield FormatRefusal(name, reason, "one BIT and one GROUP_SIZE for all layers")

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """Weights, config and tokenizer."""
        first = next(iter(model.weights.values()))
        described = {
            "quant_method": "gptq",
            "bits": first.grid.code.bits,
            "group_size": group_sizes(model).pop() or -1,
            "desc_act": False,
            "sym": True,
            "lm_head": False,
            "checkpoint_format": "gptq",
            "pack_dtype": "int32",
        }
        tensors = as_stored(model.model, float_state(model.model))
        for layer in stored_layers(model):
            tensors |= {f"{layer.name}.{key}": value for key, value in layer_tensors(layer.held).items()}
        write_pretrained(model, path, tensors, described | packed_modules(model))


def group_sizes(model: LanguageModel) -> set[int | None]:
    """The group sizes of all layers; complete rows are groups of their length where other layers have groups."""
    sizes = [(held.grid.layout.group_size, held.shape[1]) for _, held in layers_of(model)]
    grouped = any(group for group, _ in sizes)
    return {group or width for group, width in sizes} if grouped else {None}


def packed_modules(model: LanguageModel) -> dict[str, Any]:
    """Where readers find packed layers: below one path, those with these last parts of their names.

    Without it, transformers knows the paths of decoders only, and every linear layer there has to be packed. Stacked
    experts are left to GPTQModel, which knows their layers by family.
    """
    names = [name for name, _ in layers_of(model)]
    if any("[" in name for name in names):
        return {}
    shared = os.path.commonpath([name.replace(".", "/") for name in names]).split("/")
    path = ".".join(takewhile(lambda part: not part.isdecimal(), shared))
    others = [name for name, one in model.model.named_modules() if isinstance(one, nn.Linear)]
    ends = {re.split(r"(?:[.]\d+)+[.]", name)[-1] for name in names}
    if any(other.endswith(tuple(ends)) for other in others):
        ends = set(names)
    return {"block_name_to_quantize": path, "modules_in_block_to_quantize": [sorted(ends)]}


def layer_tensors(held: PackedTensor) -> dict[str, Tensor]:
    """The tensors of one linear layer."""
    bits, (rows, columns) = held.grid.code.bits, held.shape
    scale, _ = by_rows(held)
    groups = scale.shape[1]
    stored_zero = 2 ** (bits - 1) - 1
    zeros = pack_bits(torch.full((groups, rows), stored_zero, dtype=torch.uint8), bits)
    return {
        "qweight": words(held.bits).T,
        "qzeros": words(zeros),
        "scales": scale.T,
        "g_idx": torch.arange(columns, dtype=torch.int32) // (columns // groups),
    }
