"""A language model with 4-bit weights by GPTQ: perplexity beside float, and a file for an engine.

python llm_gptq.py --model folder-of-a-model --text text.txt --format gguf --output model.gguf
Without --model the tiny random model of the demo is used, with random tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from sparsebit import llm
from sparsebit.demo import language_model


def main(words: list[str] | None = None) -> dict[str, float]:
    """Quantize block by block, measure, export; returns bits and the distance from float."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", help="folder that save_pretrained wrote")
    options.add_argument("--text", type=Path, help="text to calibrate with; its end is kept to measure on")
    options.add_argument("--config", default="w4_g32", help="a preset or a YAML file")
    options.add_argument("--length", type=int, default=512, help="of a window")
    options.add_argument("--output", default="model-quantized")
    options.add_argument("--format", default="compressed-tensors")
    options = options.parse_args(words)

    if options.model:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model: Any = options.model
        reference = AutoModelForCausalLM.from_pretrained(options.model).eval()
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        ids = torch.tensor(tokenizer(options.text.read_text(encoding="utf-8"))["input_ids"])
        settings: Any = options.config
    else:
        model = reference = language_model()
        ids = torch.randint(0, 96, (16384,), generator=torch.Generator().manual_seed(0))
        settings = {
            "W": {"BIT": 4, "GROUP_SIZE": 32},
            "METHOD": ["gptq"],
            "CALIBRATION": {"SAMPLES": 16, "LENGTH": 64},
        }
        options.length = 64
    held_out = max(options.length, len(ids) // 10)
    small = llm.quantize(model, ids[:-held_out], settings)
    found = small.evaluate(ids[-held_out:], reference=reference, length=options.length)
    print(f"{small.bits:.2f} bits per weight; perplexity {found.perplexity:.3f}, "
          f"{found.divergence:.4f} nats from float, {found.agreement:.1%} of the next tokens agree")  # fmt: skip
    print(small.export(options.output, options.format))
    return {
        "bits": small.bits,
        "divergence": float(found.divergence or 0.0),
        "agreement": float(found.agreement or 0.0),
    }


if __name__ == "__main__":
    main()
