"""The goals of the user, and by how much a model misses them."""

from __future__ import annotations

from dataclasses import dataclass

from sparsebit.display import short_bytes
from sparsebit.errors import ConfigError
from sparsebit.storage import Fields


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model in numbers."""

    metric: float
    bytes: float
    """Bytes of its parameters: quantized values, scales, and everything in float."""
    seconds: float | None = None
    """Seconds of one call in the target's runtime, if time was measured."""

    @classmethod
    def read(cls, fields: Fields) -> Measured:
        """Read the result of ``to_plain``."""
        found = fields.into(cls)
        if found.bytes < 0 or (found.seconds is not None and found.seconds <= 0):
            raise fields.wrong("bytes" if found.bytes < 0 else "seconds", "a number above 0")
        return found


@dataclass(frozen=True, kw_only=True)
class Goals:
    """The allowed loss and the required gains.

    ``size`` is a fraction of the float model if it is at most 1, and a number of bytes if it is more.
    """

    max_drop: float = 0.01
    speedup: float | None = None
    size: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_drop", "speedup", "size"):
            goal = getattr(self, name)
            if not isinstance(goal, int | float) and (goal is not None or name == "max_drop"):
                raise ConfigError(f"{name}: expected a number", got=f"{goal!r:.80}")
        if not self.max_drop >= 0:
            raise ConfigError(
                "max_drop: expected the largest allowed loss of the metric, 0 or more", got=str(self.max_drop)
            )
        if self.speedup is not None and not self.speedup > 0:
            raise ConfigError("speedup: expected a factor, such as 2", got=str(self.speedup))
        if self.size is not None and not self.size > 0:
            raise ConfigError(
                "size: expected a fraction of the float model such as 0.25, or bytes", got=str(self.size)
            )

    def require_share(self) -> None:
        """Raise an error if the metric is accuracy, and more than all of it may be lost: 5 instead of 0.05."""
        if self.max_drop > 1:
            raise ConfigError(
                "max_drop: accuracy is a number from 0 to 1, so no model could lose more",
                expected="0.05 for five percent",
                got=f"{self.max_drop:g}",
            )

    def bytes_allowed(self, base: Measured) -> float | None:
        """The size in bytes.

        Example:
            >>> Goals(size=0.25).bytes_allowed(Measured(metric=1.0, bytes=4000))
            1000.0
        """
        if self.size is None:
            return None
        return self.size * base.bytes if self.size <= 1 else float(self.size)

    def shortfalls(self, base: Measured, got: Measured) -> dict[str, float]:
        """Each missed goal, and by which fraction: 0.1 is a tenth too much or too little."""
        missed: dict[str, float] = {}
        drop = base.metric - got.metric
        if drop > self.max_drop + 1e-12:
            missed["metric"] = (drop - self.max_drop) / max(abs(base.metric), 1e-12)
        allowed = self.bytes_allowed(base)
        if allowed is not None and got.bytes > allowed * (1 + 1e-9):
            missed["size"] = got.bytes / allowed - 1
        if self.speedup is not None:
            reached = speedup_of(base, got)
            if reached < self.speedup:
                missed["speedup"] = 1 - reached / self.speedup
        return missed

    def say(self, base: Measured, got: Measured) -> str:
        """The reached values compared with the goals."""
        drop = base.metric - got.metric
        lost = f"{drop:.4g} lost, {self.max_drop:.4g} allowed" if drop > 0 else "nothing lost"
        parts = [f"the metric is {got.metric:.4g} (float {base.metric:.4g}, {lost})"]
        allowed = self.bytes_allowed(base)
        asked = f", asked for {short_bytes(round(allowed))}" if allowed is not None else ""
        parts.append(
            f"the parameters take {short_bytes(round(got.bytes))} ({got.bytes / base.bytes:.1%} of float{asked})"
        )
        if got.seconds is not None and base.seconds is not None:
            asked = f", asked for {self.speedup:.3g}" if self.speedup is not None else ""
            parts.append(
                f"a call takes {got.seconds * 1e3:.3g} ms ({speedup_of(base, got):.2f} times as fast{asked})"
            )
        return "; ".join(parts)


def speedup_of(base: Measured, got: Measured) -> float:
    """How many times as fast; 1 if no time was measured."""
    if base.seconds is None or got.seconds is None:
        return 1.0
    return base.seconds / got.seconds
