"""``SCHEDULE.RECOVERY``: which algorithms win accuracy back, in order, each with its options.

A step is a name, or a mapping from the name to options: ``RECOVERY: [equalization, {brecq: {steps: 2000}}]``.
The algorithms themselves live above this package; they inherit the settings declared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from sparsebit.config.engine.options import Options
from sparsebit.config.engine.plugins import PlugInRule, PlugIns, Settings, wrong_options
from sparsebit.config.engine.problems import suggest
from sparsebit.config.engine.values import (
    FRACTION,
    NOT_NEGATIVE,
    OPTIONS,
    PART,
    POSITIVE,
    Read,
    Refused,
    whole,
)

Method = Literal["empirical", "analytic"]


@dataclass(frozen=True, kw_only=True)
class EqualizationSettings(Settings):
    """``rounds`` over all pairs of layers."""

    rounds: Annotated[int, whole(1)] = 10


@dataclass(frozen=True, kw_only=True)
class SmoothQuantSettings(Settings):
    """``alpha`` says how much of the difficulty moves from activations to weights; 0.5 shares it evenly."""

    alpha: Annotated[float, PART] = 0.5


@dataclass(frozen=True, kw_only=True)
class BiasCorrectionSettings(Settings):
    """``method`` measures means on the calibration data, or derives them from batch norms."""

    method: Method = "empirical"


@dataclass(frozen=True, kw_only=True)
class ReconstructionSettings(Settings):
    """What BRECQ and AdaRound share.

    ``steps`` mini-batches of ``batch`` samples for each part of the model; ``lr`` for the rounding, ``scale_lr`` for
    the scales of activations (0 leaves them); ``drop`` is how often an activation is left in float (QDrop);
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
    """Layer by layer, with activations as they are."""

    scale_lr: Annotated[float, NOT_NEGATIVE] = 0.0
    drop: Annotated[float, PART] = 0.0


STEP_RULES = PlugIns("recovery step", PlugInRule)
for _name, _rule in {
    "equalization": PlugInRule(options=EqualizationSettings),
    "smoothquant": PlugInRule(options=SmoothQuantSettings),
    "weight_correction": PlugInRule(options=()),
    "bias_correction": PlugInRule(options=BiasCorrectionSettings),
    "adaround": PlugInRule(options=AdaRoundSettings),
    "brecq": PlugInRule(options=ReconstructionSettings),
}.items():
    STEP_RULES.add(_name, _rule)


class Step(NamedTuple):
    """One algorithm and its options."""

    name: str
    options: Options


def parse_recovery(value: object) -> tuple[Step, ...]:
    """The steps a value spells.

    Example:
        >>> parse_recovery(["equalization", {"brecq": {"steps": 10}}])
        (Step(name='equalization', options=Options()), Step(name='brecq', options=Options(steps=10)))
    """
    if isinstance(value, str | Mapping):
        value = [value]
    if not isinstance(value, list | tuple):
        raise Refused(RECOVERY.expected)
    return tuple(_parse_step(item) for item in value)


def _parse_step(item: Any) -> Step:
    if isinstance(item, Step):
        return item
    name, options = item, None
    if isinstance(item, Mapping) and len(item) == 1:
        name, options = next(iter(item.items()))
    if not isinstance(name, str) or not isinstance(options or {}, Mapping):
        raise Refused("a name, or one name with its options, such as {brecq: {steps: 2000}}")
    name = STEP_RULES.canonical(name)
    if name not in STEP_RULES:
        raise Refused(f"one of {', '.join(STEP_RULES)}", suggest(name, list(STEP_RULES)))
    read = OPTIONS.parse(options or {})
    assert isinstance(read, Options)
    for wrong in wrong_options(name, STEP_RULES[name], read):
        raise Refused(f"{wrong.expected}, not {wrong.got}", wrong.hint)
    return Step(name, read)


def _write_recovery(steps: Any) -> list[Any]:
    return [{step.name: dict(step.options)} if step.options else step.name for step in steps]


RECOVERY = Read(
    parse_recovery,
    "a list of steps",
    {"type": "array", "items": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "object"}]}},
    _write_recovery,
)
