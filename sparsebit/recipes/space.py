"""The search space: how small a model is made, and how much work is done to keep it accurate, cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sparsebit.config import QConfig, load_qconfig
from sparsebit.recipes.goals import Goals

RATIOS = (0.0, 0.15, 0.3, 0.5)
MIXED = (0.8, 0.65)  # of the bytes at 8 bits, where no size is asked for


@dataclass(frozen=True, kw_only=True)
class Structure:
    """What determines size and speed: the pruned fraction of the multiply-accumulates, and the bits of weights."""

    ratio: float
    weights: str  # "8", "4", "mixed", or "mixed 0.8" for that part of the bytes at 8 bits

    @property
    def name(self) -> str:
        """A readable name."""
        words = {"mixed": "mixed bits within the size"}
        bits = (
            f"{self.weights}-bit weights" if self.weights.isdigit() else words.get(self.weights, self.weights)
        )
        if self.weights.startswith("mixed "):
            bits = f"mixed bits, {float(self.weights.split()[1]):.0%} of 8-bit"
        return f"{self.ratio:.0%} pruned, {bits}" if self.ratio else bits


@dataclass(frozen=True)
class Variant:
    """Settings that change accuracy but not size: an override of the config, or an additional recovery step."""

    name: str
    override: str = ""
    step: tuple[str, int] | None = None
    """Name of a recovery step that learns, and its number of rounds."""

    def apply(self, config: QConfig) -> QConfig:
        """``config`` with these settings. Biases are corrected after rounding is learned."""
        if self.step is None:
            return load_qconfig(config, [self.override])
        data, (name, rounds) = config.to_dict(), self.step
        steps = list(data["SCHEDULE"]["RECOVERY"])
        at = steps.index("bias_correction") if "bias_correction" in steps else len(steps)
        data["SCHEDULE"]["RECOVERY"] = [*steps[:at], {name: {"steps": rounds}}, *steps[at:]]
        return load_qconfig(data)


@dataclass(frozen=True)
class Level:
    """Variants of similar cost; each level starts from the best of the levels before it."""

    name: str
    costs: float  # a guess for one trial, in first trials
    keep: int  # how many structures are tried, the most promising first
    variants: tuple[Variant, ...]


_OBSERVERS = (
    Variant("minmax activations", "A.OBSERVER.TYPE=minmax"),
    Variant("percentile activations", "A.OBSERVER.TYPE=percentile"),
)
_PLACEMENT = (
    Variant("first and last layer in float", "FIRST_LAST=float"),
    Variant("additions in float", "A.QADD.ENABLE_QUANT=false"),
)
_LIGHT = (
    Variant("bias correction", "SCHEDULE.RECOVERY=[bias_correction]"),
    Variant("equalization and bias correction", "SCHEDULE.RECOVERY=[equalization, bias_correction]"),
)
_HEAVY = (Variant("adaround", step=("adaround", 500)), Variant("brecq", step=("brecq", 1000)))
LEVELS = (
    Level("observers", 1.0, 4, _OBSERVERS),
    Level("placement", 1.0, 3, _PLACEMENT),
    Level("light recovery", 2.0, 2, _LIGHT),
    Level("heavy recovery", 60.0, 2, _HEAVY),
)


def structures(goals: Goals, ratios: Sequence[float], *, mixed: bool = True) -> Iterator[Structure]:
    """All structures worth trying for these goals, the mildest first.

    Fewer bits than 8 make a model smaller, not faster, so they are tried if there is a size goal. Without goals, as
    much as possible is tried.

    Example:
        >>> [s.name for s in structures(Goals(speedup=2.0), (0.0, 0.5))]
        ['8-bit weights', '50% pruned, 8-bit weights']
    """
    for ratio in sorted(set(ratios)):
        yield Structure(ratio=ratio, weights="8")
        if goals.size is not None:
            if mixed:
                yield Structure(ratio=ratio, weights="mixed")
            yield Structure(ratio=ratio, weights="4")
        elif goals.speedup is None:
            if mixed:
                yield from (Structure(ratio=ratio, weights=f"mixed {part}") for part in MIXED)
            yield Structure(ratio=ratio, weights="4")
