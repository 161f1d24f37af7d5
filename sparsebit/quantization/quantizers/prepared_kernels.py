"""Kernels of a quantizer, prepared once for each kind of tensor, because small networks are limited by host time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from sparsebit.kernels.fake_quant import snap_with
from sparsebit.numerics.snapping import kernels_for
from sparsebit.quantization.quantizers import recomputed

if TYPE_CHECKING:
    from sparsebit.quantization.quantizers.base import Quantizer


class PreparedKernels(dict[Any, Any]):
    """Kernels by the shape, strides, dtype and device of their tensors. A copy, or a pickled one, is empty."""

    def __deepcopy__(self, memo: dict[int, Any]) -> PreparedKernels:
        return PreparedKernels()

    def __reduce__(self) -> tuple[type[PreparedKernels], tuple[()]]:
        return PreparedKernels, ()

    def snap(self, quantizer: Quantizer, x: Tensor, rectify: bool = False) -> Tensor | None:
        """``quantizer.snap(x)`` with the prepared kernels for tensors of this kind; None if there are none.

        With ``rectify``, of ``relu(x)``. Kernels are looked up only once per kind.
        """
        learned, fixed = quantizer._parameters, quantizer._buffers  # attributes would cost a search each
        scale: Any = learned["scale"] if "scale" in learned else fixed["scale"]
        zero_point: Any = learned["zero_point"] if "zero_point" in learned else fixed["zero_point"]
        key = (x.shape, x.stride(), x.dtype, x.get_device(), rectify)
        kernels = self.get(key)
        if kernels is None:
            if key in self or quantizer.layout.kind == "token":
                return None
            layout, magnitude = quantizer.layout_of(x), quantizer.MAGNITUDE
            code = quantizer.code
            kernels = self[key] = kernels_for(x, scale, zero_point, code, layout, magnitude, rectify)
            if kernels is None:
                return None
        factor = quantizer.gradient_scale(x)
        if type(factor) is not float:
            return None
        y = snap_with(kernels, x, scale, zero_point, factor)
        if x.nbytes >= recomputed.LARGE and y.requires_grad and quantizer.side == "A":
            recomputed.remember_recipe(y, kernels.snap, x, scale, zero_point)
        return y
