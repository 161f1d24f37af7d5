"""A pruning config, and the questions that the pruner asks it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from sparsebit.config.engine.config import Config, Source, load_config
from sparsebit.config.engine.match import Layer, unmatched_patterns, unmatched_rules
from sparsebit.config.engine.plugins import wrong_options
from sparsebit.config.engine.problems import Problem, raise_problems
from sparsebit.config.engine.section import key, keys_of, section
from sparsebit.config.engine.values import FRACTION, PATTERNS
from sparsebit.config.pruning.criteria import SPARSER_RULES
from sparsebit.config.pruning.sections import LayerSettings, ScheduleSection, SparserSection


class LayerSpec(NamedTuple):
    """The settings of one layer, after all rules are applied."""

    strategy: str
    ratio: float
    round_to: int
    nm: tuple[int, int]
    block: tuple[int, int]
    asked: bool  # whether a rule sets the ratio of this layer


class SConfig(Config, init=False):
    """The user's settings, from ``load_sconfig`` or from keyword arguments, which are checked in the same way.

    Example:
        >>> config = SConfig(SPARSER={"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5,
        ...                           "SPECIFIC": {"layer1.*": {"RATIO": 0.25}}})
        >>> config.layer(["layer1.0.conv1"], "conv2d").ratio, config.layer(["fc"], "linear").ratio
        (0.25, 0.5)
    """

    NAME, TITLE, PAGE = "sconfig", "Sparsebit pruning config", "prune"
    LEAST, EXAMPLE = "SPARSER with TYPE, STRATEGY and RATIO", "SPARSER.RATIO=0.3"
    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("W", "A"), "this is a quantization config, for sparsebit.quantize or QuantModel"
    )

    IGNORE: tuple[str, ...] = key(
        PATTERNS, "Layers, by dotted name or pattern, whose outputs keep all their channels.", default=()
    )
    SKIP_TRACE_MODULES: tuple[str, ...] = key(
        PATTERNS, "Modules, by dotted name or pattern, that are not traced and stay unchanged.", default=()
    )
    SPARSER: SparserSection = section(SparserSection, "What to prune, by which criterion, and how much.")
    SCHEDULE: ScheduleSection = section(ScheduleSection, "When to prune, in calls of step().")

    def conflicts(self) -> Iterator[Problem]:
        """Settings that cannot be used together."""
        sparser, schedule = self.SPARSER, self.SCHEDULE
        yield from self._criterion_problems("SPARSER.STRATEGY", sparser.STRATEGY)
        for rule in sparser.SPECIFIC:
            if "STRATEGY" in (given := dict(rule.settings)):
                path = f"SPARSER.SPECIFIC[{rule.pattern!r}].STRATEGY"
                yield from self._criterion_problems(path, given["STRATEGY"])
        criterion, places = SPARSER_RULES[sparser.STRATEGY], ("SPARSER.OPTIONS", "SPARSER.STRATEGY")
        yield from wrong_options(
            sparser.STRATEGY, criterion, sparser.OPTIONS, at=places[0], chosen_by=places[1]
        )
        if sparser.TYPE == "nm":
            yield from self._nm_problems()
        elif sparser.RATIO is None and not any("RATIO" in dict(rule.settings) for rule in sparser.SPECIFIC):
            keys = frozenset({"SPARSER.RATIO", "SPARSER.TYPE", "SPARSER.SPECIFIC"})
            yield Problem(path="SPARSER.RATIO", message="required", expected=FRACTION.expected, keys=keys)
        if sparser.TARGET != "units" and sparser.TYPE != "structured":
            because = "zeroed weights change no size; only removed channels do"
            expected, got = f"units with TYPE {sparser.TYPE}", repr(sparser.TARGET)
            yield _problem("SPARSER.TARGET", expected, got, because, "SPARSER.TYPE")
        if schedule.TYPE == "cubic" and sparser.RATIO is not None and schedule.INITIAL_RATIO > sparser.RATIO:
            expected, got = f"at most RATIO, {sparser.RATIO:g}", f"{schedule.INITIAL_RATIO:g}"
            yield _problem("SCHEDULE.INITIAL_RATIO", expected, got, "", "SPARSER.RATIO", "SCHEDULE.TYPE")
        if schedule.TYPE == "one-shot" and schedule.TIMES > 1:
            because = "choose iterative or cubic to prune in several steps"
            expected, got = "1 with TYPE one-shot", str(schedule.TIMES)
            yield _problem("SCHEDULE.TIMES", expected, got, because, "SCHEDULE.TYPE")

    def _criterion_problems(self, path: str, name: str) -> Iterator[Problem]:
        kind = self.SPARSER.TYPE
        if kind not in SPARSER_RULES[name].types:
            fitting = ", ".join(other for other, rule in SPARSER_RULES.items() if kind in rule.types)
            expected = f"a criterion for TYPE {kind} ({fitting})"
            yield _problem(path, expected, repr(name), SPARSER_RULES[name].because, "SPARSER.TYPE")

    def _nm_problems(self) -> Iterator[Problem]:
        kept, of = self.SPARSER.NM
        ratio = self.SPARSER.RATIO
        if ratio is not None and abs(ratio - (1 - kept / of)) > 1e-6:
            expected = f"nothing, or {1 - kept / of:g} with NM {kept}:{of}"
            because = "NM alone decides how much is removed"
            yield _problem("SPARSER.RATIO", expected, f"{ratio:g}", because, "SPARSER.NM", "SPARSER.TYPE")
        if self.SPARSER.SCOPE == "global":
            because = "NM is the same in every layer"
            yield _problem("SPARSER.SCOPE", "layer with TYPE nm", "'global'", because, "SPARSER.TYPE")
        if self.SCHEDULE.TYPE != "one-shot":
            because = "NM masks are applied in one step"
            got = repr(self.SCHEDULE.TYPE)
            yield _problem("SCHEDULE.TYPE", "one-shot with TYPE nm", got, because, "SPARSER.TYPE")

    def layer(self, names: Sequence[str], op: str | None) -> LayerSpec:
        """The settings of one layer, given every name a pattern may use for it and its canonical operator."""
        settings: dict[str, Any] = {name: getattr(self.SPARSER, name) for name in keys_of(LayerSettings)}
        asked = False
        for rule in self.SPARSER.SPECIFIC:
            if rule.matches(names, op):
                settings |= dict(rule.settings)
                asked = asked or "RATIO" in dict(rule.settings)
        ratio = settings["RATIO"]
        if self.SPARSER.TYPE == "nm" and not (asked and ratio == 0):
            ratio = 1 - settings["NM"][0] / settings["NM"][1]
        return LayerSpec(
            strategy=settings["STRATEGY"],
            ratio=ratio or 0.0,
            round_to=settings["ROUND_TO"],
            nm=settings["NM"],
            block=settings["BLOCK"],
            asked=asked,
        )

    def require_matched(self, layers: Iterable[Layer], modules: Iterable[str]) -> None:
        """Raise one ``ConfigError`` that names every pattern that matches nothing, with the nearest name."""
        known = tuple(layers)
        names = {*modules, *(name for one in known for name in one.names)}
        raise_problems(
            self.source,
            [
                *unmatched_rules("SPARSER.SPECIFIC", self.SPARSER.SPECIFIC, known),
                *unmatched_patterns("IGNORE", self.IGNORE, names),
            ],
        )


def _problem(path: str, expected: str, got: str, hint: str, *others: str) -> Problem:
    """A conflict between the key at ``path`` and ``others``."""
    return Problem(path=path, expected=expected, got=got, hint=hint, keys=frozenset({path, *others}))


def load_sconfig(source: Source | SConfig, overrides: Sequence[str] = ()) -> SConfig:
    """Read a pruning config and check it completely.

    Args:
        source: A YAML file, a mapping, or another config. The old ``structed`` and ``unstructed`` are accepted.
        overrides: Settings that replace those of ``source``, each as ``"SPARSER.RATIO=0.3"``. Later ones win.

    Example:
        >>> config = load_sconfig({"SPARSER": {"TYPE": "structed", "STRATEGY": "l1norm", "RATIO": 0.5}})
        >>> config.SPARSER.TYPE, config.SPARSER.ROUND_TO
        ('structured', 8)
        >>> load_sconfig({"SPARSER": {"TYPE": "structured", "STRATEGY": "l1nrom", "RATIO": 0.5}})
        Traceback (most recent call last):
        ...
        sparsebit.config.engine.problems.ConfigProblems: sconfig: SPARSER.STRATEGY: expected the name of a pruning
        criterion, got 'l1nrom'; did you mean 'l1norm'?
    """
    return load_config(SConfig, source, overrides)
