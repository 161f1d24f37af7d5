"""The recovery steps of one model: those that its config names, and AdaRound where a weight's quantizer asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from sparsebit.config import QConfig
from sparsebit.quantization.algorithms import ALGORITHMS, AdaRoundLayers, Algorithm
from sparsebit.quantization.algorithms.reconstruction import Reconstruction
from sparsebit.quantization.quantizers import AdaRound, Quantizer


def make_recovery(config: QConfig, quantizers: Iterable[Quantizer]) -> list[Algorithm]:
    """The steps, in order; made with the model, so that a wrong option is found before any work."""
    kinds: Mapping[str, Callable[..., Algorithm]] = ALGORITHMS
    made = [kinds[name](**options) for name, options in config.SCHEDULE.RECOVERY]
    rounding = any(isinstance(quantizer, AdaRound) for quantizer in quantizers)
    if rounding and not any(isinstance(step, Reconstruction) for step in made):
        made.insert(0, AdaRoundLayers())  # the others then see what was decided
    return made
