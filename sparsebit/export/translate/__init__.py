"""From a graph to a float ONNX model with markers where its quantizers are."""
