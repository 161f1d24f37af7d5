"""GGUF files for llama.cpp: a table of families, and the parts of a file: settings, tokenizer, tensors, blocks."""
