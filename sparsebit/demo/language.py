"""A tiny Llama with random weights, for trying every command for language models without a download."""

from __future__ import annotations

import torch
from torch import nn


def language_model() -> nn.Module:
    """Two layers, 64 channels, 96 tokens."""
    from sparsebit.llm.folders.folder_config import import_transformers  # not for the image model

    transformers = import_transformers()
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    state = torch.get_rng_state()
    torch.manual_seed(0)
    made: nn.Module = transformers.LlamaForCausalLM(config)
    torch.set_rng_state(state)
    return made.eval()
