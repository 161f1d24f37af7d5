"""``SCHEDULE.RECOVERY``: which algorithms recover accuracy, in order, each with its options.

A step is a name, or a mapping from the name to options: ``RECOVERY: [equalization, {brecq: {steps: 2000}}]``.
The algorithms themselves live above this package; they inherit the settings declared here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sparsebit.config.engine.plugins import PlugInRule, PlugIns, Settings
from sparsebit.config.engine.steps import steps_reader
from sparsebit.config.engine.values import FRACTION, NOT_NEGATIVE, PART, POSITIVE, whole

Method = Literal["empirical", "analytic"]


@dataclass(frozen=True, kw_only=True)
class EqualizationSettings(Settings):
    """``rounds`` over all pairs of layers."""

    rounds: Annotated[int, whole(1)] = 10


@dataclass(frozen=True, kw_only=True)
class SmoothQuantSettings(Settings):
    """``alpha`` says how much of the difficulty moves from activations to weights; 0.5 splits it evenly."""

    alpha: Annotated[float, PART] = 0.5


@dataclass(frozen=True, kw_only=True)
class BiasCorrectionSettings(Settings):
    """``method`` measures means on the calibration data, or derives them from batch norms."""

    method: Method = "empirical"


@dataclass(frozen=True, kw_only=True)
class ReconstructionSettings(Settings):
    """What BRECQ and AdaRound share.

    ``steps`` mini-batches of ``batch`` samples for each part of the model; ``lr`` for the rounding, ``scale_lr`` for
    the scales of activations (0 leaves them); ``drop`` is the probability that an activation is left in float (QDrop);
    ``regularization`` weighs the pull towards whole decisions, which sets in after ``warmup`` of the steps;
    ``largest`` is the most layers of one part.
    """

    steps: Annotated[int, whole(1)] = 2000
    batch: Annotated[int, whole(1)] = 32
    lr: Annotated[float, POSITIVE] = 1e-2
    scale_lr: Annotated[float, NOT_NEGATIVE] = 4e-5
    drop: Annotated[float, PART] = 0.5
    regularization: Annotated[float, NOT_NEGATIVE] = 0.01
    warmup: Annotated[float, FRACTION] = 0.2
    seed: int = 0
    largest: Annotated[int, whole(1)] = 12


@dataclass(frozen=True, kw_only=True)
class AdaRoundSettings(ReconstructionSettings):
    """Layer by layer, with unchanged activations."""

    scale_lr: Annotated[float, NOT_NEGATIVE] = 0.0
    drop: Annotated[float, PART] = 0.0


STEP_RULES = PlugIns(
    "recovery step",
    PlugInRule,
    {
        "equalization": PlugInRule(options=EqualizationSettings),
        "smoothquant": PlugInRule(options=SmoothQuantSettings),
        "weight_correction": PlugInRule(options=()),
        "bias_correction": PlugInRule(options=BiasCorrectionSettings),
        "adaround": PlugInRule(options=AdaRoundSettings),
        "brecq": PlugInRule(options=ReconstructionSettings),
    },
)
RECOVERY = steps_reader(STEP_RULES, "{brecq: {steps: 2000}}")
