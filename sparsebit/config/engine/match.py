"""Patterns against the layers of a model: which ones match nothing, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from sparsebit.config.engine.problems import Problem
from sparsebit.config.engine.specific import OP, Rule


class Layer(NamedTuple):
    """One operator of the model, by every name a pattern may use for it."""

    names: tuple[str, ...]  # dotted module name, flat graph name
    op: str | None = None  # canonical operator, such as conv2d


def unmatched_rules(path: str, rules: Iterable[Rule], layers: Iterable[Layer]) -> Iterator[Problem]:
    """A problem for each rule whose pattern fits no layer."""
    known = list(layers)
    for rule in rules:
        if any(rule.matches(layer.names, layer.op) for layer in known):
            continue
        if rule.pattern.startswith(OP):
            operators = {layer.op for layer in known if layer.op is not None}
            near = nearest_name(rule.pattern.removeprefix(OP), operators)
            hint = f"did you mean '{OP}{near}'?" if near else _there_are("operators", operators)
            message = "no operator matches"
        else:
            names = {name for layer in known for name in layer.names}
            near = nearest_name(rule.pattern, names)
            hint = f"the nearest name is {near!r}" if near else _there_are("layers", names)
            message = "no layer matches"
        yield Problem(path=f"{path}[{rule.pattern!r}]", message=message, hint=hint)


def unmatched_patterns(path: str, patterns: Iterable[str], names: Iterable[str]) -> Iterator[Problem]:
    """A problem for each pattern that fits no module."""
    known = list(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            near = nearest_name(pattern, known)
            hint = f"the nearest name is {near!r}" if near else _there_are("modules", known)
            yield Problem(path=f"{path}[{pattern!r}]", message="no module matches", hint=hint)


def nearest_name(pattern: str, names: Iterable[str]) -> str | None:
    """The name, or the part of one, that comes closest to a pattern.

    Patterns rarely spell whole names, so prefixes (``layer1.0`` of ``layer1.0.conv1``) and single parts (``conv1``)
    are compared as well, all without the stars.

    Example:
        >>> nearest_name("layr1.*", ["layer1.0.conv1", "layer1.0.bn1", "fc"])
        'layer1'
        >>> nearest_name("*.convs1", ["layer1.0.conv1", "fc"])
        'conv1'
    """
    candidates: dict[str, None] = {}
    for name in names:
        parts = name.split(".")
        candidates.update(dict.fromkeys([name, *(part for part in parts if not part.isdigit())]))
        candidates.update(dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts))))
    core = pattern.strip("*._?")
    near = difflib.get_close_matches(core, candidates, n=1)
    return near[0] if near else None


def _there_are(kind: str, names: Iterable[str]) -> str:
    some = sorted(names)
    if not some:
        return f"the model has no {kind}"
    return f"{kind} are, for example: {', '.join(some[:5])}"
