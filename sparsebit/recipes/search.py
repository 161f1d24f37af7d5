"""The search: which recipe is tried next, and what is known so far."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from sparsebit.analysis import choose_bits, sensitivity
from sparsebit.analysis.bits.sensitivity import Sensitivity
from sparsebit.analysis.latency import RuntimeClock
from sparsebit.analysis.size import quantized_bytes
from sparsebit.batches import device_of
from sparsebit.config import QConfig, SConfig, load_qconfig, load_sconfig
from sparsebit.errors import SparsebitError
from sparsebit.graph.capture import capture
from sparsebit.quantization import QuantModel
from sparsebit.recipes.goals import Goals, Measured
from sparsebit.recipes.recipe import Finetune, Recipe, prune_by, quantize_by
from sparsebit.recipes.space import LEVELS, Level, Structure, Variant, structures
from sparsebit.recipes.state import State, digest_batch, digest_model
from sparsebit.recipes.trial import Trial
from sparsebit.sparse import load as load_pruned
from sparsebit.sparse import save as save_pruned
from sparsebit.storage import MANIFEST
from sparsebit.targets import TARGETS

Metric = Callable[[nn.Module], float]
logger = logging.getLogger(__name__)

PRUNE: Mapping[str, Any] = {
    "SPARSER": {
        "TYPE": "structured",
        "STRATEGY": "activation_norm",
        "RATIO": 0.5,
        "TARGET": "macs",
        "SCOPE": "global",
    }
}


@dataclass
class Search:
    """Makes trials in a fixed order; every decision depends on what earlier ones measured.

    A search that goes on in a folder goes through the same order again and takes the trials it finds there, so its
    decisions are those of a search that was never stopped: ``reached`` are the trials up to here, in that order.
    """

    model: nn.Module
    batches: Sequence[Any]
    examples: tuple[tuple[Any, ...], dict[str, Any]]
    _: KW_ONLY
    goals: Goals
    target: str
    metric: Metric
    latency: Callable[[nn.Module], float] | None
    finetune: Finetune | None
    prune: SConfig
    ratios: Sequence[float]
    time_budget: float
    exhaustive: bool
    folder: Path | None
    seed: int
    on_trial: Callable[[Trial], None] | None

    def __post_init__(self) -> None:
        self.latency = self._clock(self.latency)
        self.notes: list[str] = []
        self.stopped = "everything was tried"
        self._pruned: dict[float, nn.Module] = {0.0: self.model}
        self._sensitivity: dict[float, Sensitivity] = {}
        self._built: dict[str, tuple[nn.Module, QuantModel]] = {}
        self._times: dict[str, float] = {}
        self._in_finetune = False
        self._pace: float | None = None
        self._say: Callable[[str], object] = str
        asked = {
            "model": digest_model(self.model),
            "data": digest_batch(self.batches[0]),
            "batches": len(self.batches),
            "target": self.target,
            "goals": [self.goals.max_drop, self.goals.speedup, self.goals.size],
            "seed": self.seed,
            "ratios": sorted(self.ratios),
            "pruning": self.prune.to_dict(),
            "finetune": self.finetune is not None,
        }
        self.state = State(self.folder, asked)
        self.reached: dict[str, Trial] = {}
        self.base = self.state.base or self._measure_float()
        if self.state.base is None:
            self.state.base = self.base
            self.state.write()
        for trial in self.state.trials.values():
            if trial.plan and trial.measured and trial.measured.seconds is not None:
                self._times.setdefault(f"{trial.structure} {trial.plan}", trial.measured.seconds)

    @property
    def seconds(self) -> float:
        """That all trials took, in this run and those before it."""
        return sum(trial.seconds for trial in self.reached.values())

    # -- the order ----------------------------------------------------------------------------------------------

    def run(self, say: Callable[[str], object] = str) -> None:
        """Make trials until the goals are met, everything was tried, or the time is over; ``say`` is told of each."""
        self._say = say
        mixed = importlib.util.find_spec("scipy") is not None
        if not mixed:
            self.notes.append("mixed bits were not tried: scipy is not installed")
        plan = list(structures(self.goals, self.ratios, mixed=mixed))
        for structure in plan:
            if self._out_of_time(1.0):
                return
            if self._needless(structure):
                continue
            self._try(structure, structure.name, partial(self._first_config, structure))
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
        """The best trial of every structure: small and fast enough if there is one, then by the metric."""
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
        """Whether to stop because a trial meets everything; without a size or a speedup there is always more to win."""
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
        trials = [trial for trial in self.reached.values() if trial.measured is not None]
        if not trials:
            return False
        left = self.time_budget - self.seconds
        over = left <= 0 or (costs > 1 and left < costs * min(trial.seconds for trial in trials))
        if over:
            self.stopped = f"the time budget of {self.time_budget:.0f} s is used up"
        return over

    def _needless(self, structure: Structure) -> bool:
        """Fewer bits than needed: 8-bit weights already fit, so there is only accuracy to lose."""
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
            small = self._small(structure.ratio)
            failed = self._same_as_before(structure.ratio)
            recipe = self._recipe(structure, config(), name)
            if not failed:
                qmodel = quantize_by(recipe, small, self.batches, *self.examples)
                plan = digest_plan(qmodel)
                if unlike == plan:
                    failed = "the same quantizers at the same places"
        except (SparsebitError, RuntimeError, NotImplementedError) as error:
            if self._in_finetune:  # the user's code, and the user's to see
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

    def _recipe(self, structure: Structure, config: QConfig, name: str) -> Recipe:
        prune = self._prune_config(structure.ratio) if structure.ratio else None
        return Recipe(
            quantize=config,
            prune=prune,
            reestimate=prune is not None,
            finetune=prune is not None and self.finetune is not None,
            seed=self.seed,
            name=name,
        )

    def _prune_config(self, ratio: float) -> SConfig:
        return load_sconfig(self.prune, [f"SPARSER.RATIO={ratio}"])

    def _small(self, ratio: float) -> nn.Module:
        """The pruned model, made once; a trained one is kept in the folder, since training is long."""
        if ratio not in self._pruned:
            base = load_qconfig(TARGETS[self.target].preset)
            recipe = self._recipe(Structure(ratio=ratio, weights="8"), base, "")
            kept = self.folder / f"pruned_{round(100 * ratio)}" if self.folder and self.finetune else None
            if kept is not None and (kept / MANIFEST).is_file():
                self._pruned[ratio] = load_pruned(kept, self.model, *self.examples).eval()
            else:
                finetune = self._train if self.finetune else None
                small = prune_by(recipe, self.model, self.batches, *self.examples, finetune=finetune)
                if kept is not None:
                    save_pruned(small, kept)
                self._pruned[ratio] = small
        return self._pruned[ratio]

    def _train(self, model: nn.Module) -> None:
        assert self.finetune is not None
        self._in_finetune = True
        self.finetune(model)
        self._in_finetune = False

    def _same_as_before(self, ratio: float) -> str:
        """Why a pruned model is not worth a trial: widths are rounded, so two ratios may give one model."""
        shapes = [tuple(p.shape) for p in self._small(ratio).parameters()]
        for other in sorted({0.0, *self.ratios}):
            # One that cannot be pruned says so in a trial of its own.
            with contextlib.suppress(SparsebitError, RuntimeError, NotImplementedError):
                if other < ratio and [tuple(p.shape) for p in self._small(other).parameters()] == shapes:
                    return f"it prunes no more than {other:.0%} does"
        return ""

    def _first_config(self, structure: Structure) -> QConfig:
        """The target's preset, on the model's device, with the bits of a structure."""
        where = f"DEVICE={device_of(self.model)}"
        config = load_qconfig(TARGETS[self.target].preset, [f"BACKEND={self.target}", where])
        if structure.weights == "8":
            return config
        config = load_qconfig(config, ["W.OBSERVER.TYPE=mse"])  # it pays below 8 bits
        if structure.weights.isdigit():
            return load_qconfig(config, [f"W.QUANTIZER.BIT={structure.weights}"])
        found = self._sensitivities(structure.ratio, config)
        _, _, part = structure.weights.partition(" ")
        budget = float(part) * found.size(found.uniform(8)) if part else self.goals.bytes_allowed(self.base)
        return choose_bits(found, size=budget, points=2).config

    def _sensitivities(self, ratio: float, config: QConfig) -> Sensitivity:
        if ratio not in self._sensitivity:
            inputs, kwargs = self.examples
            measure = partial(
                sensitivity,
                self._small(ratio),
                config,
                self.batches,
                example_inputs=inputs,
                example_kwargs=kwargs,
                bits=TARGETS[self.target].stored_bits,
                batches=4,
                seed=self.seed,
                progress=False,
            )
            try:
                self._sensitivity[ratio] = measure(metric="fisher")
            except (SparsebitError, RuntimeError):  # no gradients here: by running it, which takes longer
                self._sensitivity[ratio] = measure(metric="output")
        return self._sensitivity[ratio]

    # -- numbers ------------------------------------------------------------------------------------------------

    def _measure_float(self) -> Measured:
        parameters = {id(p): p.numel() * p.element_size() for p in self.model.parameters()}
        seconds = None
        if self.latency is not None:
            inputs, kwargs = self.examples
            seconds = self.latency(capture(self.model, inputs, kwargs))
            self._pace = 1.0
        metric = float(self.metric(self.model))
        if not math.isfinite(metric):
            raise SparsebitError("the metric of the float model is not a number", got=str(metric))
        return Measured(metric=metric, bytes=sum(parameters.values()), seconds=seconds)

    def _measure(self, structure: Structure, qmodel: QuantModel, plan: str) -> Measured:
        seconds = None
        if self.latency is not None:  # depends on structure and places, not on ranges
            key = f"{structure.name} {plan}"
            if key not in self._times:
                self._times[key] = self._seconds_of(qmodel)
            seconds = self._times[key]
        return Measured(metric=float(self.metric(qmodel)), bytes=quantized_bytes(qmodel), seconds=seconds)

    def _seconds_of(self, model: nn.Module) -> float:
        """Seconds of one call. In a run that goes on they are scaled by how fast the float model is in this one."""
        assert self.latency is not None
        if self._pace is None:
            self._pace = 1.0
            if isinstance(self.latency, RuntimeClock) and self.base.seconds is not None:
                inputs, kwargs = self.examples
                self._pace = self.base.seconds / self.latency(capture(self.model, inputs, kwargs))
        return self._pace * self.latency(model)

    def _clock(self, latency: Callable[[nn.Module], float] | None) -> Callable[[nn.Module], float] | None:
        if latency is not None:
            return latency
        if self.goals.speedup is None:
            return None
        runtime = TARGETS[self.target].runtime
        if runtime is None:
            raise SparsebitError(
                f"there is no runtime here to measure the speed of {self.target} in",
                hint="pass latency=, a function from a model to the seconds of one call; or choose a target that runs"
                f" here: {', '.join(name for name, target in TARGETS.items() if target.runtime)}",
            )
        return RuntimeClock(self.examples, runtime=runtime)

    # -- the outcome --------------------------------------------------------------------------------------------

    def best(self) -> Trial:
        """Of the trials that meet the goals the one with the best metric, or the smallest where there is no other goal.

        Where none does, the one that misses by the least.
        """
        done = [trial for trial in self.reached.values() if trial.measured is not None]
        if not done:
            reasons = dict.fromkeys(trial.failed for trial in self.reached.values())
            raise SparsebitError("no recipe could be applied to this model", got="; ".join(reasons))

        def order(trial: Trial) -> tuple[float, ...]:
            measured = trial.measured
            assert measured is not None
            missed = sum(self.goals.shortfalls(self.base, measured).values())
            if missed or self.goals.size is not None or self.goals.speedup is not None:
                return (missed, -measured.metric, measured.bytes)
            return (missed, measured.bytes, -measured.metric)

        return min(done, key=order)

    def built(self, trial: Trial) -> tuple[nn.Module, QuantModel]:
        """The models of a trial, made again where they are not at hand."""
        if trial.name not in self._built:
            assert trial.recipe is not None
            small = self._small(self._structure(trial.structure).ratio)
            self._built[trial.name] = (small, quantize_by(trial.recipe, small, self.batches, *self.examples))
        return self._built[trial.name]

    def _remember(self, name: str, small: nn.Module, qmodel: QuantModel) -> None:
        """Keep the models of the last trial that may turn out to be the best, and no others."""
        self._built[name] = (small, qmodel)
        if len(self._built) > 3:
            known = {n for n in self._built if n in self.reached}
            best = self.best().name if known else None
            for stale in [n for n in self._built if n not in (best, name)]:
                del self._built[stale]

    def _structure(self, name: str) -> Structure:
        return next(s for s in structures(self.goals, self.ratios) if s.name == name)


def digest_plan(qmodel: QuantModel) -> str:
    """Where quantizers stand, with how many bits, as one short text: what decides the speed."""
    rows = [(t.name, t.side, t.spec.codes, t.spec.granularity, t.readers) for t in qmodel.plan.tensors]
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]
