"""From markers to QuantizeLinear and DequantizeLinear, in the forms that the kernels of a target accept."""
