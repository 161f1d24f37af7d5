"""The error of every layer and tensor of a quantized model, relative to float."""
