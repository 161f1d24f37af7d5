"""optimum-quanto: rounding to nearest; groups of 128, or fewer where that does not divide the layer (here 96)."""

# ruff: noqa: E402
# user: begin
import torch
from optimum.quanto import QLinear, freeze, qtypes
from optimum.quanto import quantize as quantize_modules
from transformers import AutoModelForCausalLM


def quantize(folder, samples, bits):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    quantize_modules(model, weights=qtypes[f"qint{bits}"], exclude="lm_head")
    freeze(model)
    return model


# user: end
from benchmarks.peers.language.solve import Outcome, nbytes, solve


def outcome(model) -> Outcome:
    """The weights are tensors of quanto's own class."""
    held = {name: one.weight for name, one in model.named_modules() if isinstance(one, QLinear)}
    stored = sum(nbytes(one._data._data, one._scale, one._shift) for one in held.values())
    return Outcome({f"{name}.weight": one.dequantize() for name, one in held.items()}, stored)


if __name__ == "__main__":
    solve("optimum-quanto", quantize, outcome)
