"""SPECIFIC: settings for some layers, in any of the accepted notations.

    SPECIFIC: [{conv1: [QUANTIZER.BIT, 8], "*norm*": [QUANTIZER.DISABLE, True]}]     one dict in a list, as ever
    SPECIFIC: {conv1: [QUANTIZER.BIT, 8]}                                            the dict alone
    SPECIFIC: [{"op:linear": {QUANTIZER: {BIT: 8}}}, {head: {QUANTIZER.BIT: 4}}]     several, with nested settings

All become one tuple of rules in the order they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from sparsebit.config.engine.nested import leaves, section_at
from sparsebit.config.engine.problems import show
from sparsebit.config.engine.section import Findings, Key, Section, flatten, join, read_keys
from sparsebit.config.engine.values import Read, Refused

OP = "op:"
_FORM = "patterns with settings, or a list of such"
_TWICE = Refused("each key once", "it is given twice")


@dataclass(frozen=True)
class Rule:
    """Settings for the layers that a pattern matches.

    Example:
        >>> rule = Rule("layer1_*_conv?", (("QUANTIZER.BIT", 8),))
        >>> rule.matches(["layer1.0.conv1", "layer1_0_conv1"], "conv2d")
        True
        >>> Rule("op:conv*", ()).matches(["stem"], "conv2d")
        True
    """

    pattern: str
    settings: tuple[tuple[str, Any], ...]

    def matches(self, names: Iterable[str], op: str | None) -> bool:
        """Whether the pattern matches any of the layer's names or, after ``op:``, its operator."""
        if self.pattern.startswith(OP):
            return op is not None and fnmatchcase(op, self.pattern.removeprefix(OP))
        return any(fnmatchcase(name, self.pattern) for name in names)


def rules(settings: type[Section]) -> Any:
    """A field of rules, each of which may give some of ``settings``."""
    setting = {"anyOf": [{"type": "array"}, {"type": "object"}, {"type": "null"}]}
    one = {"type": "object", "additionalProperties": setting}
    read = Read(tuple, _FORM, {"anyOf": [one, {"type": "array", "items": one}]}, write_rules)  # type: ignore[arg-type]
    doc = "Settings for some layers by pattern: dotted name, flat name, or op:<operator>. Later rules win."

    def read_all(value: object, path: str, found: Findings) -> tuple[Rule, ...]:
        before = len(found.problems)
        read = [
            Rule(pattern, _read_settings(settings, given, place, found))
            for place, pattern, given in _entries(value, path, found)
        ]
        if len(found.problems) > before:
            found.wrong.add(path)
            return ()
        return tuple(read)

    return field(default=(), metadata={"key": Key(doc, read, read_all=read_all)})


def write_rules(rules: Sequence[Rule]) -> list[dict[str, list[Any]]]:
    """The rules in the old form; a repeated pattern starts another dict, because order matters."""
    written: list[dict[str, list[Any]]] = []
    for rule in rules:
        if not written or rule.pattern in written[-1]:
            written.append({})
        flat = [part for setting in rule.settings for part in setting]
        written[-1][rule.pattern] = [list(part) if isinstance(part, tuple) else part for part in flat]
    return written


def _entries(value: object, path: str, found: Findings) -> Iterator[tuple[str, str, object]]:
    """Each pattern with its settings and its path in the config."""
    groups: Sequence[object] = [value] if isinstance(value, Mapping) else ()
    if isinstance(value, list | tuple):
        groups = value
    elif not groups:
        found.add(path, Refused(_FORM), value)
    for index, group in enumerate(groups):
        here = f"{path}[{index}]" if len(groups) > 1 else path
        if isinstance(group, Rule):
            group = write_rules([group])[0]
        if not isinstance(group, Mapping):
            found.add(here, Refused("patterns with settings"), group)
            continue
        for pattern, given in group.items():
            text = str(pattern) if isinstance(pattern, int) and not isinstance(pattern, bool) else pattern
            if not isinstance(text, str) or text.strip() in ("", OP):
                found.add(here, Refused("a pattern such as conv1, layer1.* or op:conv2d"), pattern)
            else:
                yield f"{here}[{show(text)}]", text, given


def _read_settings(
    kind: type[Section], given: object, path: str, found: Findings
) -> tuple[tuple[str, Any], ...]:
    """The settings of one rule, each read by the same key as those for the complete model."""
    before, nested = len(found.problems), dict[str, Any]()
    for name, value in _pairs(given, path, found):
        *above, last = name.split(".")
        section = section_at(nested, above)
        if section is None or last in section:
            found.add(join(path, name), _TWICE, value)
        else:
            section[last] = value
    if len(found.problems) > before:
        return ()
    return tuple(flatten(read_keys(kind, nested, path, found, complete=False)).items())


def _pairs(given: object, path: str, found: Findings) -> Iterator[tuple[str, object]]:
    """Dotted keys with values, from a flat list or from keys with values, nested, dotted or both."""
    pairs: Iterable[tuple[object, object]] = ()
    if isinstance(given, Mapping):
        pairs = given.items()
    elif isinstance(given, list | tuple) and len(given) % 2:
        found.add(path, Refused("pairs of subkey and value", f"{show(given[-1])} has no value"), given)
    elif isinstance(given, list | tuple):
        pairs = zip(given[::2], given[1::2], strict=True)
    elif given is not None:
        found.add(path, Refused("a list [subkey, value, ...] or keys with values"), given)
    for name, value in pairs:
        if isinstance(name, str):
            yield from leaves({name: value})
        else:
            found.add(path, Refused("a subkey such as QUANTIZER.BIT"), name)
