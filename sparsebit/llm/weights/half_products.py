"""Products of bfloat16 numbers, which some processors multiply twice as fast as float32.

Runs on calibration data are measured, not kept: what bfloat16 rounds off a product (two parts in a thousand, different
for each token) is far below what quantization does to it. ``CALIBRATION.DTYPE`` says whether blocks run that way, by
``torch.autocast``; hidden states stay in float32. The price: sums in another order, such as those of several processes,
change more of the result.
"""

from __future__ import annotations

import torch
from torch import Tensor


def multiplies_bfloat16_faster(device: torch.device) -> bool:
    """Whether products of bfloat16 matrices take less time there than those of float32."""
    return device.type == "cuda" or bool(torch.cpu.get_capabilities().get("avx512_bf16", False))


def rough_product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` in float32, to two or three digits where the processor multiplies bfloat16 faster.

    Enough for a correction, or for a sum of squares; second moments would have no inverse.
    """
    if multiplies_bfloat16_faster(a.device):
        return (a.bfloat16() @ b.bfloat16()).float()
    return a.float() @ b.float()
