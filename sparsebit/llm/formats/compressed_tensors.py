"""compressed-tensors, ``pack-quantized``: what vLLM, SGLang and transformers load.

A linear layer ``n`` of [out, in] becomes ``n.weight_packed`` (each row a little-endian bit stream in 32-bit words),
``n.weight_scale`` [out, groups], ``n.weight_shape``, and with zero points ``n.weight_zero_point``, packed along the
output channels. Values are stored counted from the lowest one, which is how ``PackedTensor`` holds them already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.transformers import TRANSFORMERS
from sparsebit.llm.formats.format import (
    FORMATS,
    FormatRefusal,
    WeightKind,
    by_rows,
    layers_of,
    refuse_by_kind,
    words,
    write_pretrained,
)
from sparsebit.llm.language_model import LanguageModel
from sparsebit.numerics.packed import PackedTensor
from sparsebit.numerics.packing import pack_bits

_INTEGERS = ("int", "full", "uint")


@FORMATS.register("compressed-tensors")
class CompressedTensors:
    """A folder for vLLM, SGLang and transformers."""

    extension: ClassVar[str] = ""
    engine: ClassVar[Engine | None] = TRANSFORMERS

    mixes_widths: ClassVar[bool] = True

    def refuse(self, layer: str, kind: WeightKind) -> FormatRefusal | None:
        """Whatever is not a linear layer with 2, 3, 4 or 8 bits."""
        code = kind.code
        if kind.holder == "experts":
            return FormatRefusal(layer, "it does not support stacked experts", "IGNORE: the experts")
        if kind.holder == "conv1d":
            return FormatRefusal(
                layer, "its readers pack nn.Linear, and this is a Conv1D", "IGNORE: this layer"
            )
        if kind.holder == "embedding":
            return FormatRefusal(layer, "only linear layers are packed", "HEAD.BIT: 0")
        if code.kind not in _INTEGERS or code.bits not in (2, 3, 4, 8):
            return FormatRefusal(layer, f"{code} is not one of its integer types", "BIT: 2, 3, 4 or 8")
        return None

    def file_bits(self, bits: int) -> int:
        """As many: rows are streams of bits."""
        return bits

    def refusals(self, model: LanguageModel) -> Iterator[FormatRefusal]:
        """Layers that are not linear ones with 2, 3, 4 or 8 bits."""
        return refuse_by_kind(model, self.refuse)

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """Weights, config and tokenizer."""
        groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for name, held in layers_of(model):
            code = held.grid.code
            groups[code.bits, code.symmetric, held.grid.layout.group_size].append(name)
        write_pretrained(model, path, layer_tensors, quantization_config(groups, ignored_linears(model)))


def layer_tensors(held: PackedTensor) -> dict[str, Tensor]:
    """The tensors of one linear layer."""
    scale, zero_point = by_rows(held)
    found = {
        "weight_packed": words(held.bits),
        "weight_scale": scale.contiguous(),
        "weight_shape": torch.tensor(held.shape, dtype=torch.int64),
    }
    if not held.grid.code.symmetric:
        along_rows = pack_bits(zero_point.T.contiguous(), held.grid.code.bits)
        found["weight_zero_point"] = words(along_rows).T.contiguous()
    return found


def ignored_linears(model: LanguageModel) -> list[str]:
    """Linear layers that stayed in float, the head among them."""
    return [name for name, one in model.model.named_modules() if isinstance(one, nn.Linear)]


def quantization_config(groups: dict[tuple[Any, ...], list[str]], ignore: list[str]) -> dict[str, Any]:
    """The part of config.json that tells a loader how to read the weights."""
    made = {}
    for index, ((bits, symmetric, size), names) in enumerate(groups.items()):
        targets = ["Linear"] if len(groups) == 1 else [f"re:^{name.replace('.', '[.]')}$" for name in names]
        made[f"group_{index}"] = {
            "targets": targets,
            "input_activations": None,
            "output_activations": None,
            "weights": {
                "num_bits": bits,
                "type": "int",
                "symmetric": symmetric,
                "strategy": "channel" if size is None else "group",
                "group_size": size,
                "dynamic": False,
                "actorder": None,
                "block_structure": None,
                "observer": "minmax",
                "observer_kwargs": {},
            },
        }
    return {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": ignore,
        "config_groups": made,
    }
