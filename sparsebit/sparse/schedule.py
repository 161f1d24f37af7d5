"""The pruning schedule: the ratio to reach at each step of training.

A schedule changes at START, then every EVERY steps, TIMES steps long, up to the final ratio. Its only state is the
number of the step, so a run is resumed by setting that.
"""

from __future__ import annotations

from sparsebit.config.pruning.sections import ScheduleSection


def progress_at(schedule: ScheduleSection, step: int) -> float | None:
    """How far a change at this step goes, from 0 (initial ratio) to 1 (final ratio); None without a change.

    For ``cubic`` it is Zhu and Gupta (2017), "To prune, or not to prune", equation 1.

    Example:
        >>> schedule = ScheduleSection(TYPE="cubic", START=10, EVERY=5, TIMES=2)
        >>> [progress_at(schedule, step) for step in (0, 9, 10, 12, 15, 20, 99)]
        [None, None, 0.0, None, 0.875, 1.0, None]
    """
    index, rest = divmod(step - schedule.START, schedule.EVERY)
    if schedule.TYPE == "one-shot":
        return 1.0 if step == schedule.START else None
    if rest or index < 0:
        return None
    if schedule.TYPE == "iterative":  # the first change already removes something
        return (index + 1) / schedule.TIMES if index < schedule.TIMES else None
    if index > schedule.TIMES:
        return None
    return 1 - (1 - index / schedule.TIMES) ** 3


def ratio_at(schedule: ScheduleSection, progress: float, final: float) -> float:
    """The ratio at some progress; a final ratio of 0 stays 0."""
    initial = min(schedule.INITIAL_RATIO, final) if schedule.TYPE == "cubic" else 0.0
    return initial + (final - initial) * progress
