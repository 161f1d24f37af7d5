"""GGUF files for llama.cpp: one table of families, and what a file holds: settings, tokenizer, tensors, blocks."""
