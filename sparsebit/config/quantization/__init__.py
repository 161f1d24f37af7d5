"""The keys of a quantization config, and which settings can be used together."""
