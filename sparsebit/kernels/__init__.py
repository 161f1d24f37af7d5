"""GPU kernels: plain tensors in and out, each a torch operator, each with a plain torch reference in ``numerics``.

Nothing here needs Triton to be imported; if it is missing, or the device is not CUDA, callers use the reference.
"""
