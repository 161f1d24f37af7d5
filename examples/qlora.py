"""Train adapters over a packed language model (QLoRA), in one process or in several.

python examples/qlora.py                                                        one process, a small model
torchrun --nproc-per-node 2 examples/qlora.py                                   each batch divided among two
torchrun --nproc-per-node 2 examples/qlora.py --pipeline                        the blocks divided among two
python examples/qlora.py --model FOLDER --text train.txt --steps 200            your own model and text
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from sparsebit import llm
from sparsebit.demo import language_model
from sparsebit.llm.lora import add_lora, save_lora, train_lora


def main(words: list[str] | None = None) -> dict[str, float]:
    """Quantize, add adapters that start from what quantization lost, train, save."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="a folder that save_pretrained wrote; a small model by default")
    parser.add_argument("--text", type=Path, help="text to train on, for --model")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--pipeline", action="store_true", help="divide the blocks among the processes")
    parser.add_argument("--out", default="adapter", help="folder for the adapters, in peft's files")
    given = parser.parse_args(words)

    floats = given.model or language_model()
    data = given.text or torch.randint(16, (4096,), generator=torch.Generator().manual_seed(0))
    model = llm.quantize(floats, None, {"W": {"BIT": 4, "GROUP_SIZE": 32}, "METHOD": "rtn"}, progress=False)
    add_lora(model, rank=8, floats=floats)
    losses = train_lora(
        model, data, steps=given.steps, rate=1e-2, batch=4, length=64, warmup=2, pipeline=given.pipeline
    )
    if os.environ.get("RANK", "0") == "0":
        save_lora(model, given.out)
        print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, adapters in {given.out}")
    return {"first": losses[0], "last": losses[-1]}


if __name__ == "__main__":
    main()
