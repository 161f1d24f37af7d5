"""Batch norm in a quantized graph: re-estimated, and folded."""
