"""HQQ: scales and zero points that fit most weights well, found without data."""

# ruff: noqa: E402
# user: begin
import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from hqq.models.hf.base import AutoHQQHFModel
from transformers import AutoModelForCausalLM


def quantize(folder, samples, bits):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = BaseQuantizeConfig(nbits=bits, group_size=64, axis=1)
    AutoHQQHFModel.quantize_model(model, quant_config=config, compute_dtype=torch.float32, device="cpu")
    return model


# user: end
from benchmarks.peers.language.solve import Outcome, nbytes, solve


def outcome(model) -> Outcome:
    """HQQ's layers know their own weights."""
    layers = {name: one for name, one in model.named_modules() if isinstance(one, HQQLinear)}
    stored = sum(nbytes(one.W_q, one.meta["scale"], one.meta["zero"]) for one in layers.values())
    return Outcome({f"{name}.weight": one.dequantize() for name, one in layers.items()}, stored)


if __name__ == "__main__":
    solve("hqq", quantize, outcome)
