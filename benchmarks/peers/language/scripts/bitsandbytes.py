"""bitsandbytes: NF4 in blocks of 64 with a float32 scale, without data."""

# ruff: noqa: E402
# user: begin
import torch
from bitsandbytes.functional import dequantize_4bit
from bitsandbytes.nn import Linear4bit
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def quantize(folder, samples, bits):
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type=f"nf{bits}", bnb_4bit_compute_dtype=torch.float32
    )
    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, quantization_config=config, device_map="cpu"
    )


# user: end
from benchmarks.peers.language.solve import Outcome, nbytes, solve


def outcome(model) -> Outcome:
    """The state of each weight says how to read it."""
    held = {name: one.weight for name, one in model.named_modules() if isinstance(one, Linear4bit)}
    stored = sum(nbytes(one.data, one.quant_state.absmax) for one in held.values())
    weights = {f"{name}.weight": dequantize_4bit(one.data, one.quant_state) for name, one in held.items()}
    return Outcome(weights, stored)


if __name__ == "__main__":
    solve("bitsandbytes", quantize, outcome)
