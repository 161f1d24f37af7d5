"""The arithmetic of quantization: grids, which elements share a scale, numbers to codes and back. Torch only."""
