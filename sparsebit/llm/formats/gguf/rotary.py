"""Rotary embeddings as keys and tensors of a GGUF file, including their scaling to longer texts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sparsebit.errors import SparsebitError
from sparsebit.llm.formats.gguf.families import Family, head_width


def add_rotary(writer: Any, module: nn.Module, family: Family) -> dict[str, Tensor]:
    """Add the keys of rotary embeddings, and return the tensors that the file needs for them."""
    from gguf import RopeScalingType

    config: Any = module.config
    rope = getattr(config, "rope_parameters", None)
    if not rope:
        return {}
    of_layers = ""
    if "full_attention" in rope:  # one for each type of layer
        local, rope = rope["sliding_attention"], rope[_main_layers(config)]
        of_layers = f"{_main_layers(config)}_"
        writer.add_rope_freq_base_swa(float(local["rope_theta"]))
    width = int(head_width(config) * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(width)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    kind = rope.get("rope_type", "default")
    if kind == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rope["factor"]))
    if kind in ("llama3", "yarn", "longrope"):
        rotary = next(one for one in module.modules() if hasattr(one, f"{of_layers}original_inv_freq"))
        factor_of_attention = float(getattr(rotary, f"{of_layers}attention_scaling"))
        frequencies: Tensor = getattr(rotary, f"{of_layers}original_inv_freq")
        if kind == "longrope":
            writer.add_rope_scaling_orig_ctx_len(int(rope["original_max_position_embeddings"]))
            writer.add_rope_scaling_attn_factors(factor_of_attention)
            names = {"rope_factors_long.weight": "long_factor", "rope_factors_short.weight": "short_factor"}
            return {name: torch.tensor(rope[key], dtype=torch.float32) for name, key in names.items()}
        if "llama3" in family.rope_scaling:  # these architectures read a tensor that divides every frequency
            writer.add_rope_scaling_attn_factors(factor_of_attention)
            plain = float(rope["rope_theta"]) ** (torch.arange(0, width, 2, dtype=torch.float64) / -width)
            return {"rope_freqs.weight": (plain / frequencies.double().cpu()).float()}
        factor = float(rope["factor"])
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(factor)
        writer.add_rope_scaling_orig_ctx_len(int(rope["original_max_position_embeddings"]))
        # llama.cpp multiplies by the factor of YaRN's paper itself.
        writer.add_rope_scaling_attn_factors(factor_of_attention / (0.1 * math.log(factor) + 1))
    return {}


def require_rotary(config: Any, family: Family) -> None:
    """Refuse rotary embeddings that llama.cpp computes differently."""
    rope = getattr(config, "rope_parameters", None) or {}
    if "full_attention" in rope:
        local, rope = rope["sliding_attention"], rope[_main_layers(config)]
        if local.get("rope_type", "default") != "default":
            _refuse(config, "default in sliding-window layers", local["rope_type"])
        if family.architecture == "olmo2" and local["rope_theta"] != rope["rope_theta"]:
            _refuse(config, f"rope_theta: {rope['rope_theta']} in sliding-window layers", local["rope_theta"])
    part = rope.get("partial_rotary_factor", 1.0)
    if part != 1 and not family.rotates_a_part:
        _refuse(config, "partial_rotary_factor: 1", part)
    kind = rope.get("rope_type", "default")
    if kind != "default" and kind not in family.rope_scaling:
        _refuse(config, " or ".join(("default", *family.rope_scaling)), kind)
    if kind == "yarn" and "llama3" not in family.rope_scaling:
        # Without a tensor for the frequencies, llama.cpp computes them with these constants.
        for name, value in (("beta_fast", 32), ("beta_slow", 1), ("truncate", True)):
            if (found := rope.get(name)) not in (None, value):
                _refuse(config, f"yarn with {name}: {value}", found)


def _main_layers(config: Any) -> str:
    """The type of layers that the keys without "swa" are for: those without a window, where there are some."""
    return "full_attention" if "full_attention" in config.layer_types else "sliding_attention"


def _refuse(config: Any, expected: str, got: object) -> None:
    raise SparsebitError(
        f"llama.cpp does not compute these rotary embeddings for {config.model_type}",
        where="rope_parameters",
        expected=expected,
        got=str(got),
        hint="choose another format",
    )
