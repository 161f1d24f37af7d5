"""Find everything that is wrong with a pruning config in one go: keys, values, and what goes together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from sparsebit.config.engine.problems import Problem, raise_problems, suggest
from sparsebit.config.pruning.criteria import SPARSER_RULES
from sparsebit.config.pruning.sections import LayerSettings, SConfigKeys
from sparsebit.config.quantization.check import read_errors


def check_sconfig(data: Mapping[str, Any], source: str, origins: Mapping[str, str] | None = None) -> None:
    """Raise one ``ConfigError`` with every problem in ``data``; return when there is none.

    ``origins`` says which keys came from somewhere else than ``source``: key path to a description of it.
    """
    try:
        found = list(sconfig_problems(SConfigKeys.model_validate(data)))
    except ValidationError as error:
        found, _ = read_errors(error.errors(include_url=False), SConfigKeys)
        found = [_about_rules(problem) for problem in found]
    raise_problems(source, [_place(problem, origins or {}) for problem in found])


def _about_rules(problem: Problem) -> Problem:
    """A rule may set fewer keys than SPARSER itself, so the advice about an unknown one is another."""
    if problem.message != "unknown key" or ".SPECIFIC[" not in problem.path:
        return problem
    key = problem.path.rpartition("].")[2]
    return replace(problem, hint=suggest(key, list(LayerSettings.model_fields)))


def _place(problem: Problem, origins: Mapping[str, str]) -> Problem:
    for key, origin in origins.items():
        if problem.path == key or problem.path.startswith((f"{key}.", f"{key}[")):
            return replace(problem, source=origin)
    return problem


def sconfig_problems(config: SConfigKeys) -> Iterator[Problem]:
    """What is wrong with settings that can each be read."""
    sparser, schedule = config.SPARSER, config.SCHEDULE
    yield from _criterion_problems("SPARSER.STRATEGY", sparser.STRATEGY, sparser.TYPE)
    yield from _option_problems(config)
    for rule in sparser.SPECIFIC:
        strategy = dict(rule.settings).get("STRATEGY")
        path = f"SPARSER.SPECIFIC[{rule.pattern!r}].STRATEGY"
        if isinstance(strategy, str):
            yield from _criterion_problems(path, strategy, sparser.TYPE)
    if sparser.TYPE == "nm":
        yield from _nm_problems(config)
    elif sparser.RATIO is None and not any("RATIO" in dict(rule.settings) for rule in sparser.SPECIFIC):
        yield Problem(
            path="SPARSER.RATIO", message="required", expected="a number from 0 up to but not including 1"
        )
    if sparser.TARGET != "units" and sparser.TYPE != "structured":
        yield Problem(
            path="SPARSER.TARGET",
            expected=f"units with TYPE {sparser.TYPE}",
            got=repr(sparser.TARGET),
            hint="zeros make nothing smaller; only whole channels do",
        )
    if schedule.TYPE == "cubic" and sparser.RATIO is not None and schedule.INITIAL_RATIO > sparser.RATIO:
        yield Problem(
            path="SCHEDULE.INITIAL_RATIO",
            expected=f"at most RATIO, {sparser.RATIO:g}",
            got=f"{schedule.INITIAL_RATIO:g}",
        )
    if schedule.TYPE == "one-shot" and schedule.TIMES > 1:
        yield Problem(
            path="SCHEDULE.TIMES",
            expected="1 with TYPE one-shot",
            got=str(schedule.TIMES),
            hint="choose iterative or cubic to prune in several steps",
        )


def _criterion_problems(path: str, name: str, kind: str) -> Iterator[Problem]:
    rule = SPARSER_RULES[name]
    if kind not in rule.types:
        fitting = [other for other, known in SPARSER_RULES.items() if kind in known.types]
        yield Problem(
            path=path,
            expected=f"a criterion for TYPE {kind} ({', '.join(fitting)})",
            got=repr(name),
            hint=rule.because,
        )


def _option_problems(config: SConfigKeys) -> Iterator[Problem]:
    known = SPARSER_RULES[config.SPARSER.STRATEGY].options
    if known is None:
        return
    for name in config.SPARSER.OPTIONS:
        if name not in known:
            hint = suggest(name, known) if known else f"{config.SPARSER.STRATEGY} has no options"
            yield Problem(path=f"SPARSER.OPTIONS.{name}", message="unknown option", hint=hint)


def _nm_problems(config: SConfigKeys) -> Iterator[Problem]:
    kept, of = config.SPARSER.NM
    ratio = config.SPARSER.RATIO
    if ratio is not None and abs(ratio - (1 - kept / of)) > 1e-6:
        yield Problem(
            path="SPARSER.RATIO",
            expected=f"nothing, or {1 - kept / of:g} with NM {kept}:{of}",
            got=f"{ratio:g}",
            hint="N of M decides how much goes",
        )
    if config.SPARSER.SCOPE == "global":
        yield Problem(
            path="SPARSER.SCOPE",
            expected="layer with TYPE nm",
            got="'global'",
            hint="N of M holds everywhere alike",
        )
    if config.SCHEDULE.TYPE != "one-shot":
        yield Problem(
            path="SCHEDULE.TYPE",
            expected="one-shot with TYPE nm",
            got=repr(config.SCHEDULE.TYPE),
            hint="N of M has no steps in between",
        )
