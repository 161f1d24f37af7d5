"""Switch several quantizers on and off, and restore them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from sparsebit.errors import SparsebitError
from sparsebit.graph.exclusive import replaced
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.quantizers.base import Substitute


def switch(quantizer: Quantizer | None, on: bool) -> None:
    """Enable or disable a quantizer, if there is one; a quantizer that is fused away stays off."""
    if quantizer is not None and not quantizer.fake_fused:
        quantizer.enable_quant() if on else quantizer.disable_quant()


def switched(
    quantizers: Iterable[Quantizer], on: bool | Callable[[Quantizer], bool] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Inside the block quantizers are on or off; afterwards, also after an error, they are restored.

    Args:
        quantizers: which ones.
        on: True, False, or a function that decides for each; with None, only the block switches them. One without a
            scale stays off.
    """

    def inside(quantizer: Quantizer) -> bool:
        if on is None:
            return quantizer.use_quant
        return (on if isinstance(on, bool) else on(quantizer)) and quantizer.calibrated

    return replaced(*((quantizer, "use_quant", inside(quantizer)) for quantizer in quantizers))


def substituted(
    quantizers: Iterable[Quantizer], substitute: Substitute
) -> contextlib.AbstractContextManager[None]:
    """Inside the block, quantizers that are on call ``substitute`` instead of ``snap``."""
    return replaced(*((quantizer, "substitute", substitute) for quantizer in quantizers))


def require_calibrated(quantizers: Iterable[Quantizer]) -> None:
    """Raise an error if an enabled quantizer has no scale."""
    missing = [q.name for q in quantizers if not q.calibrated and not q.fake_fused]
    if missing:
        raise SparsebitError(
            f"the model is not calibrated: {len(missing)} quantizers have no scale, the first is {missing[0]!r}",
            expected="prepare_calibration(), some batches, calc_qparams(); again after set_bit()",
            hint="call qmodel.calibrate(loader) first",
        )
