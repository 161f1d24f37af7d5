"""Products with weights from bfloat16 numbers, which some processors multiply twice as fast as float32.

Runs on calibration data are measured, not kept: what bfloat16 rounds off a product (two parts in a thousand, different
for each token) is far below what quantization does to it. Hidden states, attention, norms and second moments stay in
float32. The price: sums in another order, such as those of several processes, change more of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

SMALLEST = 64  # rows and columns of a weight; what chooses experts has fewer


def multiplies_bfloat16_faster(device: torch.device) -> bool:
    """Whether products of bfloat16 matrices take less time there than those of float32."""
    return device.type == "cuda" or bool(torch.cpu.get_capabilities().get("avx512_bf16", False))


class HalfProducts(TorchFunctionMode):
    """While active, ``F.linear`` of float32 tensors multiplies their bfloat16 values and returns float32.

    It has to be entered before any other mode that looks at products, which then see float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Tensor, int, Tensor] | None = None  # query, key and value read the same input

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not F.linear or len(args) < 2 or kwargs.keys() - {"bias"}:
            return func(*args, **kwargs)
        inputs, weight = args[:2]
        bias = args[2] if len(args) > 2 else kwargs.get("bias")
        if any(one.dtype != torch.float32 for one in (inputs, weight)) or min(weight.shape) < SMALLEST:
            return func(*args, **kwargs)
        if self._last is None or self._last[0] is not inputs or self._last[1] != inputs._version:
            self._last = inputs, inputs._version, inputs.bfloat16()
        product = F.linear(self._last[2], weight.bfloat16()).float()
        return product if bias is None else product.add_(bias)
