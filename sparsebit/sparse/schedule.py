"""When how much is pruned: the ratio to reach at each step of training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparsebit.config.pruning.sections import ScheduleSection


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Changes at ``start``, then every ``every`` steps, ``times`` steps long, up to the final ratio.

    The state of a schedule is the number of the step alone, so a run is resumed by setting that.

    Example:
        >>> schedule = Schedule(kind="cubic", start=10, every=5, times=2)
        >>> [schedule.progress_at(step) for step in (0, 9, 10, 12, 15, 20, 99)]
        [None, None, 0.0, None, 0.875, 1.0, None]
    """

    kind: Literal["one-shot", "iterative", "cubic"] = "one-shot"
    start: int = 0
    every: int = 1
    times: int = 1
    initial: float = 0.0

    def progress_at(self, step: int) -> float | None:
        """How far a change at this step goes, from 0 (initial ratio) to 1 (final ratio); None without a change.

        For ``cubic`` it is Zhu and Gupta (2017), "To prune, or not to prune", equation 1.
        """
        index, rest = divmod(step - self.start, self.every)
        if self.kind == "one-shot":
            return 1.0 if step == self.start else None
        if rest or index < 0:
            return None
        if self.kind == "iterative":  # the first change already removes something
            return (index + 1) / self.times if index < self.times else None
        if index > self.times:
            return None
        return 1 - (1 - index / self.times) ** 3

    def scale(self, progress: float, final: float) -> float:
        """The ratio at some progress; a final ratio of 0 stays 0."""
        initial = min(self.initial, final) if self.kind == "cubic" else 0.0
        return initial + (final - initial) * progress


def make_schedule(section: ScheduleSection) -> Schedule:
    """The schedule that a config asks for."""
    return Schedule(
        kind=section.TYPE,
        start=section.START,
        every=section.EVERY,
        times=section.TIMES,
        initial=section.INITIAL_RATIO,
    )
