"""The search: the results so far, and which recipe is tried next."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import math
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass
from functools import partial

from torch import nn

from sparsebit.analysis.latency import RuntimeClock
from sparsebit.analysis.size import quantized_bytes
from sparsebit.config import QConfig
from sparsebit.errors import SparsebitError
from sparsebit.graph.capture import capture
from sparsebit.graph.run import SavedState
from sparsebit.quantization import QuantModel
from sparsebit.recipes.candidates import CANNOT, Candidates
from sparsebit.recipes.goals import Goals, Measured
from sparsebit.recipes.recipe import Recipe
from sparsebit.recipes.space import LEVELS, Level, Structure, Variant, structures
from sparsebit.recipes.state import State, digest_data, digest_model
from sparsebit.recipes.trial import Trial
from sparsebit.runtime.timing import measured_seconds
from sparsebit.targets import TARGETS

Metric = Callable[[nn.Module], float]
logger = logging.getLogger(__name__)


@dataclass
class Search:
    """Runs trials in a fixed order; every decision depends on the results of earlier ones.

    A resumed search follows the same order and uses the trials that it finds in the folder, so its decisions are those
    of an uninterrupted search: ``reached`` are the trials so far, in that order.
    """

    candidates: Candidates
    _: KW_ONLY
    goals: Goals
    metric: Metric
    latency: Callable[[nn.Module], float] | None
    time_budget: float
    exhaustive: bool
    on_trial: Callable[[Trial], None] | None

    def __post_init__(self) -> None:
        self.latency = self._clock(self.latency)
        self.notes: list[str] = []
        self.stopped = "everything was tried"
        self._built: dict[str, tuple[nn.Module, QuantModel]] = {}
        self._times: dict[str, float] = {}
        self._pace: float | None = None
        self._say: Callable[[str], object] = str
        made = self.candidates
        asked = {
            "model": digest_model(made.model),
            "data": digest_data(made.batches),
            "target": made.target,
            **asdict(self.goals),
            "seed": made.seed,
            "ratios": sorted(made.ratios),
            "pruning": made.prune.to_dict(),
            "finetune": made.finetune is not None,
        }
        self.state = State(made.folder, asked)
        self.reached: dict[str, Trial] = {}
        self.base = self.state.base or self._measure_float()
        if self.state.base is not None:
            self._require_same_metric(self.state.base.metric)
        else:
            self.state.base = self.base
            self.state.write()
        for trial in self.state.trials.values():
            if trial.plan and trial.measured and trial.measured.seconds is not None:
                self._times.setdefault(f"{trial.structure} {trial.plan}", trial.measured.seconds)

    @property
    def seconds(self) -> float:
        """The duration of all trials, in this run and earlier ones."""
        return sum(trial.seconds for trial in self.reached.values())

    # -- the order ----------------------------------------------------------------------------------------------

    def run(self, say: Callable[[str], object] = str) -> None:
        """Run trials until the goals are met, everything is tried, or the time is over; ``say`` is called for each."""
        self._say = say
        mixed = importlib.util.find_spec("scipy") is not None
        if not mixed:
            self.notes.append("mixed bits were not tried: scipy is not installed")
        allowed = self.goals.bytes_allowed(self.base)
        for structure in list(structures(self.goals, self.candidates.ratios, mixed=mixed)):
            if self._out_of_time(1.0):
                return
            if self._needless(structure):
                continue
            config = partial(self.candidates.first_config, structure, allowed)
            self._try(structure, structure.name, config)
            if self._satisfied():
                return
        for level in LEVELS:
            for start in self._promising()[: level.keep]:
                for variant in level.variants:
                    if self._out_of_time(level.costs):
                        return
                    self._vary(start, level, variant)
                    if self._satisfied():
                        return

    def _vary(self, start: Trial, level: Level, variant: Variant) -> None:
        """One variant of a trial."""
        assert start.recipe is not None
        config = start.recipe.quantize
        self._try(
            self._structure(start.structure),
            f"{start.name} + {variant.name}",
            partial(variant.apply, config),
            unlike=start.plan if level.name == "placement" else None,
        )

    def _leaders(self) -> dict[str, Trial]:
        """The best trial of every structure: first those that are small and fast enough, then by metric."""
        found: dict[str, Trial] = {}
        for trial in self.reached.values():
            if trial.measured is not None and self._rank(trial) > self._rank(found.get(trial.structure)):
                found[trial.structure] = trial
        return found

    def _rank(self, trial: Trial | None) -> tuple[bool, float]:
        if trial is None or trial.measured is None:
            return (False, -math.inf)
        missed = self.goals.shortfalls(self.base, trial.measured).keys() - {"metric"}
        return (not missed, trial.measured.metric)

    def _promising(self) -> list[Trial]:
        """The leaders of structures that are small and fast enough, nearest to the allowed drop first."""
        hopeful = []
        for trial in self._leaders().values():
            assert trial.measured is not None
            missed = self.goals.shortfalls(self.base, trial.measured)
            if not missed.keys() - {"metric"} and (self.exhaustive or "metric" in missed):
                hopeful.append(trial)
        return sorted(hopeful, key=self._rank, reverse=True)

    def _satisfied(self) -> bool:
        """Whether to stop because a trial meets all goals; without a size or a speedup, the search always continues."""
        if self.exhaustive or (self.goals.size is None and self.goals.speedup is None):
            return False
        met = any(
            trial.measured is not None and not self.goals.shortfalls(self.base, trial.measured)
            for trial in self.reached.values()
        )
        if met:
            self.stopped = "the goals are met"
        return met

    def _out_of_time(self, costs: float) -> bool:
        if not self.reached:
            return False
        left = self.time_budget - self.seconds
        measured = [trial.seconds for trial in self.reached.values() if trial.measured is not None]
        over = left <= 0 or (costs > 1 and left < costs * min(measured, default=0.0))
        if over:
            self.stopped = f"the time budget of {self.time_budget:.0f} s is used up"
        return over

    def _needless(self, structure: Structure) -> bool:
        """Whether fewer bits are useless: if 8-bit weights already fit, they could only lose accuracy."""
        if self.goals.size is None or structure.weights == "8":
            return False
        same = Structure(ratio=structure.ratio, weights="8").name
        trial = self.reached.get(same)
        allowed = self.goals.bytes_allowed(self.base)
        return (
            trial is not None
            and trial.measured is not None
            and allowed is not None
            and trial.measured.bytes <= allowed
        )

    # -- one trial ----------------------------------------------------------------------------------------------

    def _try(
        self, structure: Structure, name: str, config: Callable[[], QConfig], unlike: str | None = None
    ) -> None:
        if name in self.state.trials:  # of an earlier run in the same folder
            self.reached[name] = self.state.trials[name]
            return
        self._say(name)
        start = time.perf_counter()
        recipe: Recipe | None = None
        measured: Measured | None = None
        plan = failed = ""
        try:
            small = self.candidates.pruned(structure.ratio)
            failed = self.candidates.same_as_before(structure.ratio)
            recipe = self.candidates.recipe(structure, config(), name)
            if not failed:
                qmodel = self.candidates.quantized(recipe, small)
                plan = digest_plan(qmodel)
                if unlike == plan:
                    failed = "the same quantizers at the same places"
        except CANNOT as error:
            if self.candidates.in_finetune:  # an error of the user's code, for the user to see
                raise
            failed = str(error).partition("\n")[0]
        if not failed:
            measured = self._measure(structure, qmodel, plan)
            if math.isfinite(measured.metric):
                self._remember(name, small, qmodel)
            else:
                measured, failed = None, "its metric is not a number"
        seconds = time.perf_counter() - start
        trial = Trial(
            name=name,
            structure=structure.name,
            recipe=recipe,
            measured=measured,
            seconds=seconds,
            plan=plan,
            failed=failed,
        )
        self.reached[name] = trial
        self.state.add(trial)
        logger.info("%s: %s", name, failed or (self.goals.say(self.base, measured) if measured else ""))
        if self.on_trial is not None:
            self.on_trial(trial)

    # -- numbers ------------------------------------------------------------------------------------------------

    def _measure_float(self) -> Measured:
        parameters = {id(p): p.numel() * p.element_size() for p in self.candidates.model.parameters()}
        seconds = None
        if self.latency is not None:
            inputs, kwargs = self.candidates.example
            seconds = measured_seconds(self.latency, capture(self.candidates.model, inputs, kwargs))
            self._pace = 1.0
        metric = self.metric_of(self.candidates.model)
        if not math.isfinite(metric):
            raise SparsebitError("the metric of the float model is NaN", got=str(metric))
        return Measured(metric=metric, bytes=sum(parameters.values()), seconds=seconds)

    def _require_same_metric(self, before: float) -> None:
        """Raise if a resumed search would compare trials that were measured differently."""
        now = self.metric_of(self.candidates.model)
        if not math.isclose(now, before, rel_tol=1e-5, abs_tol=1e-9):
            raise SparsebitError(
                f"{self.candidates.folder} contains a search with another metric, or other data to measure it on",
                expected=f"{before:.6g} for the float model, as in this search",
                got=f"{now:.6g}",
                hint="choose another folder, or remove this one to start again",
            )

    def _measure(self, structure: Structure, qmodel: QuantModel, plan: str) -> Measured:
        seconds = None
        if self.latency is not None:  # depends on structure and places, not on ranges
            key = f"{structure.name} {plan}"
            if key not in self._times:
                self._times[key] = self._seconds_of(qmodel)
            seconds = self._times[key]
        return Measured(metric=self.metric_of(qmodel), bytes=quantized_bytes(qmodel), seconds=seconds)

    def metric_of(self, model: nn.Module) -> float:
        """The metric of a model, whose buffers are restored."""
        with SavedState(model, parameters=False).undone():
            found = self.metric(model)
        try:
            return float(found)
        except (TypeError, ValueError, RuntimeError):
            raise SparsebitError("the metric did not return a number", got=f"{found!r:.80}") from None

    def _seconds_of(self, model: nn.Module) -> float:
        """Seconds of one call. In a resumed run, they are scaled by the speed of the float model in this run."""
        assert self.latency is not None
        if self._pace is None:
            self._pace = 1.0
            if isinstance(self.latency, RuntimeClock) and self.base.seconds is not None:
                inputs, kwargs = self.candidates.example
                self._pace = self.base.seconds / self.latency(capture(self.candidates.model, inputs, kwargs))
        return self._pace * measured_seconds(self.latency, model)

    def _clock(self, latency: Callable[[nn.Module], float] | None) -> Callable[[nn.Module], float] | None:
        if latency is not None:
            return latency
        if self.goals.speedup is None:
            return None
        runtime = TARGETS[self.candidates.target].runtime
        if runtime is None:
            raise SparsebitError(
                f"no runtime is installed that can measure the speed of {self.candidates.target}",
                hint="pass latency=, a function from a model to the seconds of one call; or choose a target that runs"
                f" here: {', '.join(name for name, target in TARGETS.items() if target.runtime)}",
            )
        return RuntimeClock(self.candidates.example, runtime=runtime)

    # -- the outcome --------------------------------------------------------------------------------------------

    def best(self) -> Trial:
        """The trial with the best metric of those that meet the goals, or the smallest if there is no other goal.

        If none meets them, the one that misses them by the least.
        """
        done = [trial for trial in self.reached.values() if trial.measured is not None]
        if not done:
            reasons = dict.fromkeys(trial.failed for trial in self.reached.values())
            raise SparsebitError(
                "no recipe could be applied to this model",
                got="; ".join(reasons),
                hint=f"{self.stopped}; raise it" if self.stopped.startswith("the time budget") else None,
            )

        def order(trial: Trial) -> tuple[float, ...]:
            measured = trial.measured
            assert measured is not None
            missed = sum(self.goals.shortfalls(self.base, measured).values())
            if missed or self.goals.size is not None or self.goals.speedup is not None:
                return (missed, -measured.metric, measured.bytes)
            return (missed, measured.bytes, -measured.metric)

        return min(done, key=order)

    def built(self, trial: Trial) -> tuple[nn.Module, QuantModel]:
        """The models of a trial, created again if they are not in memory."""
        if trial.name not in self._built:
            assert trial.recipe is not None
            small = self.candidates.pruned(self._structure(trial.structure).ratio)
            self._built[trial.name] = (
                small,
                self.candidates.quantized(trial.recipe, small),
            )
        return self._built[trial.name]

    def _remember(self, name: str, small: nn.Module, qmodel: QuantModel) -> None:
        """Keep only the models of the last trial that may be the best."""
        self._built[name] = (small, qmodel)
        if len(self._built) > 3:
            known = {n for n in self._built if n in self.reached}
            best = self.best().name if known else None
            for stale in [n for n in self._built if n not in (best, name)]:
                del self._built[stale]

    def _structure(self, name: str) -> Structure:
        return next(s for s in structures(self.goals, self.candidates.ratios) if s.name == name)


def digest_plan(qmodel: QuantModel) -> str:
    """A digest of the places and bits of quantizers, which determine the speed."""
    rows = [(t.name, t.side, t.spec.codes, t.spec.granularity, t.readers) for t in qmodel.plan.tensors]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
