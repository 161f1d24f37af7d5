"""torchao: rounding to nearest on an affine grid (its int4 kernels need a GPU; intx runs everywhere)."""

# ruff: noqa: E402
# user: begin
import torch
from torchao.quantization import IntxWeightOnlyConfig, MappingType, quantize_
from torchao.quantization.granularity import PerGroup
from transformers import AutoModelForCausalLM


def quantize(folder, samples, bits):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = IntxWeightOnlyConfig(
        weight_dtype=getattr(torch, f"int{bits}"),
        granularity=PerGroup(64),
        mapping_type=MappingType.ASYMMETRIC,
    )
    quantize_(model.model, config)
    return model


# user: end
from benchmarks.peers.language.solve import Outcome, nbytes, solve


def outcome(model) -> Outcome:
    """The weights are tensors of torchao's own class; it keeps one value in each byte."""
    layers = {f"model.{n}": one for n, one in model.model.named_modules() if isinstance(one, torch.nn.Linear)}
    held = {name: one.weight for name, one in layers.items()}
    stored = sum(nbytes(one.qdata, one.scale, one.zero_point) for one in held.values())
    return Outcome({f"{name}.weight": one.dequantize() for name, one in held.items()}, stored)


if __name__ == "__main__":
    solve("torchao", quantize, outcome)
