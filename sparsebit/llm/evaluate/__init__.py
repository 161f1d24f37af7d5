"""How good a language model is: perplexity, divergence, agreement."""
