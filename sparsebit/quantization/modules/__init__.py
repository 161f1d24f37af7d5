"""The modules of a quantized graph: leaves with access to their quantizers, and the graph around them."""
