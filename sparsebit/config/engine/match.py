"""Compare patterns with the layers of a model: which patterns match nothing, and what was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from sparsebit.config.engine.problems import Problem, show
from sparsebit.config.engine.specific import OP, Rule

_AROUND = "*._?"  # characters that a pattern may have around a name


class Layer(NamedTuple):
    """One operator of the model, with every name that a pattern may use for it."""

    names: tuple[str, ...]  # dotted module name, flat graph name
    op: str | None = None  # canonical operator, such as conv2d


def unmatched_rules(path: str, rules: Iterable[Rule], layers: Iterable[Layer]) -> Iterator[Problem]:
    """A problem for each rule whose pattern matches no layer."""
    known = list(layers)
    names = {name for layer in known for name in layer.names}
    operators = {layer.op for layer in known if layer.op is not None}
    for pattern in [one.pattern for one in rules if not any(one.matches(*layer) for layer in known)]:
        what, hint = "layer", ""
        if not pattern.startswith(OP):
            hint = _advice(pattern, names, "layers")
        else:
            what, near = "operator", nearest_name(pattern.removeprefix(OP), operators)
            hint = f"did you mean '{OP}{near}'?" if near else _there_are("operators", operators)
        yield Problem(path=f"{path}[{show(pattern)}]", message=f"no {what} matches", hint=hint)


def unmatched_patterns(path: str, patterns: Iterable[str], names: Iterable[str]) -> Iterator[Problem]:
    """A problem for each pattern that matches no module."""
    known = set(names)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            hint = _advice(pattern, known, "modules")
            yield Problem(path=f"{path}[{show(pattern)}]", message="no module matches", hint=hint)


def _advice(pattern: str, names: Iterable[str], kind: str) -> str:
    """What was probably meant: the pattern with stars, because it must match a complete name, or a similar name."""
    core = pattern.strip(_AROUND)
    for wider in (f"{core}.*", f"*.{core}", f"*.{core}.*", f"*{core}*") if core else ():
        if matched := sorted(name for name in names if fnmatchcase(name, wider)):
            more = f" and {len(matched) - 1} more" if len(matched) > 1 else ""
            return f"a pattern must match all of a name; {wider!r} matches {matched[0]}{more}"
    near = nearest_name(pattern, names)
    return f"the nearest name is {near!r}" if near else _there_are(kind, names)


def nearest_name(pattern: str, names: Iterable[str]) -> str | None:
    """The name, or part of a name, that is most similar to a pattern.

    Patterns rarely contain complete names, so prefixes (``layer1.0`` of ``layer1.0.conv1``) and single parts
    (``conv1``) are compared as well, all without the stars.

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
    near = difflib.get_close_matches(pattern.strip(_AROUND)[:100], candidates, n=1)
    return near[0] if near else None


def _there_are(kind: str, names: Iterable[str]) -> str:
    some = sorted(names)
    if not some:
        return f"the model has no {kind}"
    return f"{kind} are, for example: {', '.join(some[:5])}"
