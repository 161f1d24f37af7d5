"""Quantization: which tensors get a grid, how it is chosen from data, and the arithmetic on it."""
