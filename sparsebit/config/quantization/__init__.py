"""What may stand in a quantization config, and what goes together."""
