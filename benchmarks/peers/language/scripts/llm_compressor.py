"""llm-compressor: GPTQ on an affine grid, with the act-order that it uses by default."""

# ruff: noqa: E402, I001
# user: begin
import torch
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from transformers import AutoModelForCausalLM


def quantize(folder, samples, bits):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    grid = QuantizationArgs(num_bits=bits, symmetric=False, strategy="group", group_size=64)
    recipe = GPTQModifier(
        ignore=["lm_head"], config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=grid)}
    )
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in samples.tolist()]
    length = samples.shape[1]
    oneshot(
        model=model,
        dataset=Dataset.from_list(rows),
        recipe=recipe,
        max_seq_length=length,
        num_calibration_samples=len(rows),
    )
    return model


# user: end
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from benchmarks.peers.language.solve import Outcome, solve


def outcome(model) -> Outcome:
    """As the layers compute before they are saved; stored as its files do, scales in the dtype of the model."""
    layers = {name: one for name, one in model.named_modules() if hasattr(one, "weight_scale")}
    weights, stored = {}, 0
    for name, one in layers.items():
        grid = one.quantization_scheme.weights
        weights[f"{name}.weight"] = fake_quantize(one.weight, one.weight_scale, one.weight_zero_point, grid)
        groups = one.weight_scale.numel()
        stored += (
            one.weight.numel() + groups
        ) * grid.num_bits // 8 + groups * one.weight_scale.element_size()
    return Outcome(weights, stored)


if __name__ == "__main__":
    solve("llmcompressor", quantize, outcome)
