"""GPTQ of a model with the shapes of Llama-2-7B and random weights, on the GPU: seconds a block, and for all 32."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import torch

from sparsebit import llm
from sparsebit.llm import quantize_blocks
from sparsebit.llm.language_model import LanguageModel, Made

BLOCKS = 32
PUBLISHED = (10, 30)  # minutes of GPTQ for a model of this class on one GPU, as its paper reports
CONFIGS = {
    "gptq as published": {"gptq": {"steps": 1, "follow": 0.0}},
    "gptq, the default": {"gptq": {}},
}


def measure(blocks: int = 2, samples: int = 128, length: int = 2048) -> Iterable[dict[str, Any]]:
    """Each configuration on a few blocks; the others are as long as the last of these: extrapolated."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "vocab_size": 32000}
    for name, method in CONFIGS.items():
        torch.manual_seed(0)
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("cuda"):
                model = LlamaForCausalLM(LlamaConfig(**sizes, num_hidden_layers=blocks)).eval()
        finally:
            torch.set_default_dtype(torch.float32)
        ids = torch.randint(32000, (samples * length * 2,), generator=torch.Generator().manual_seed(0))
        times: list[float] = []
        before = LanguageModel.add

        def add(
            self: LanguageModel, made: Iterable[Made], times: list[float] = times, before: Any = before
        ) -> None:
            before(self, made)
            torch.cuda.synchronize()
            times.append(time.perf_counter())

        config = {
            "W": {"BIT": 4, "GROUP_SIZE": 128},
            "METHOD": method,
            "CALIBRATION": {"SAMPLES": samples, "LENGTH": length},
        }
        quantize_blocks.LanguageModel.add = add  # type: ignore[method-assign]
        try:
            torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            llm.quantize(model, ids, config, progress=False)
        finally:
            quantize_blocks.LanguageModel.add = before  # type: ignore[method-assign]
        block = times[blocks - 1] - times[blocks - 2]
        yield {
            "method": name,
            "tokens": samples * length,
            "first_block_s": times[0] - start,
            "block_s": block,
            "whole_model_minutes_extrapolated": (times[0] - start + (BLOCKS - 1) * block) / 60,
            "published_minutes": PUBLISHED,
            "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
        }
        del model
        torch.cuda.empty_cache()
