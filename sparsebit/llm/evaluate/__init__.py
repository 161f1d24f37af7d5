"""The quality of a language model: perplexity, divergence, agreement."""
