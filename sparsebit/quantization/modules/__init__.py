"""The modules of a quantized graph: leaves that know their quantizers, and the graph around them."""
