"""AutoRound: rounding learned block by block with the sign of the gradient, on an affine grid."""

# ruff: noqa: E402, I001
# user: begin
import torch
from auto_round import AutoRound
from transformers import AutoModelForCausalLM, AutoTokenizer


def quantize(folder, samples, bits):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [{"input_ids": row[None], "attention_mask": torch.ones_like(row)[None]} for row in samples]
    rounder = AutoRound(
        model,
        tokenizer=tokenizer,
        scheme=f"W{bits}A16",
        group_size=64,
        sym=False,
        dataset=rows,
        nsamples=len(samples),
        seqlen=samples.shape[1],
        iters=STEPS,
        batch_size=SEQUENCES,
        device_map="cpu",
        enable_torch_compile=False,
    )
    quantized, _ = rounder.quantize()
    return quantized


# user: end
from benchmarks.peers.language.solve import Outcome, solve
from benchmarks.peers.language.protocol import SEQUENCES, STEPS


def outcome(model) -> Outcome:
    """It leaves rounded weights in the float layers, with their scales; stored as its files do, scales in float16."""
    layers = {name: one for name, one in model.named_modules() if getattr(one, "scale", None) is not None}
    groups = sum(one.scale.numel() for one in layers.values())
    bits = next(iter(layers.values())).bits
    count = sum(one.weight.numel() for one in layers.values())
    stored = (count + groups) * bits // 8 + groups * 2
    return Outcome({f"{name}.weight": one.weight for name, one in layers.items()}, stored)


if __name__ == "__main__":
    solve("auto-round", quantize, outcome)
