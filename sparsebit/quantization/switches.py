"""Quantizers on and off: the one place that switches several of them, and puts them back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from sparsebit.errors import SparsebitError
from sparsebit.graph.exclusive import replaced
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.quantizers.base import Substitute


def switch(quantizer: Quantizer | None, on: bool) -> None:
    """Enable or disable a quantizer, where there is one; one that is fused away stays off."""
    if quantizer is not None and not quantizer.fake_fused:
        quantizer.enable_quant() if on else quantizer.disable_quant()


def switched(
    quantizers: Iterable[Quantizer], on: bool | Callable[[Quantizer], bool] | None = None
) -> contextlib.AbstractContextManager[None]:
    """Inside the block quantizers are on or off; afterwards, also of an error, each is as it was.

    Args:
        quantizers: which ones.
        on: True, False, or a function that says it for each; None leaves them for the block to switch. One without a
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
    """Inside the block quantizers that are on call ``substitute`` in place of ``snap``; afterwards as before."""
    return replaced(*((quantizer, "substitute", substitute) for quantizer in quantizers))


def require_calibrated(quantizers: Iterable[Quantizer]) -> None:
    """Raise if a quantizer that is to work has no scale."""
    missing = [q.name for q in quantizers if not q.calibrated and not q.fake_fused]
    if missing:
        raise SparsebitError(
            f"the model is not calibrated: {len(missing)} quantizers have no scale, the first is {missing[0]!r}",
            expected="prepare_calibration(), some batches, calc_qparams(); again after set_bit()",
            hint="call qmodel.calibrate(loader) first",
        )
