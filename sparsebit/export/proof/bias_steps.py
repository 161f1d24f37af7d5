"""By how much integer kernels may move a result because they round its bias."""

from __future__ import annotations

from typing import Any

import numpy as np

from sparsebit.export.forms.editor import array_of

GAIN = 1.2  # the steepest activation between a product and its codes: that of gelu and silu is 1.13 at most
PRODUCTS = ("Conv", "Gemm", "MatMul")


def bias_steps(model: Any) -> dict[str, float]:
    """For every quantized activation with a product before it, half a step of the bias in steps of its own grid.

    The bias of a product of integers is a multiple of input scale times weight scale, so its error is half of that.
    """
    found = {}
    for node in model.graph:
        name, _, kind = node.name.rpartition("/")
        if node.op_type == "QuantizeLinear" and kind == "QuantizeLinear":
            scale = array_of(node.inputs[1])
            if steps := _behind(node.inputs[0]):
                found[name] = GAIN * steps / (1.0 if scale is None else float(np.min(scale)))
    return found


def _behind(value: Any) -> float:
    """The sum over the products that are computed from codes between here and the quantized tensors before."""
    waiting, seen, total = [value], set(), 0.0
    while waiting:
        current = waiting.pop()
        node = current.producer() if current is not None else None
        if node is None or node.op_type == "DequantizeLinear" or node in seen:
            continue
        seen.add(node)
        if node.op_type in PRODUCTS:
            total += _half_step(node)
        waiting += node.inputs
    return total


def _half_step(product: Any) -> float:
    scales = []
    for value in product.inputs[:2]:
        maker = value.producer()
        while maker is not None and maker.op_type != "DequantizeLinear":
            first = maker.inputs[0] if maker.inputs else None
            maker = first.producer() if first is not None else None
        scale = array_of(maker.inputs[1]) if maker is not None else None
        if scale is None:
            return 0.0
        scales.append(float(np.max(scale)))
    return 0.5 * scales[0] * scales[1]
