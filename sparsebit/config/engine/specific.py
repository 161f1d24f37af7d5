"""SPECIFIC: per-layer settings, read from every form they may be written in.

    SPECIFIC: [{conv1: [QUANTIZER.BIT, 8], "*norm*": [QUANTIZER.DISABLE, True]}]     one dict in a list, as ever
    SPECIFIC: {conv1: [QUANTIZER.BIT, 8]}                                            the dict alone
    SPECIFIC: [{"op:linear": {QUANTIZER: {BIT: 8}}}, {head: {QUANTIZER.BIT: 4}}]     several, with nested settings

All become one tuple of rules in the order they were written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from sparsebit.config.engine.nested import leaves, merge, section_at
from sparsebit.config.engine.problems import show
from sparsebit.config.engine.values import Read, refuse
from sparsebit.config.quantization.tensor_spec import Options, Scalar

OP = "op:"
BIT, DTYPE = "QUANTIZER.BIT", "QUANTIZER.DTYPE"
RULE_WISH = "a list [subkey, value, ...] or keys with values"
_TWICE = ("each key once", "it is given twice")


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
    settings: tuple[tuple[str, Scalar], ...]

    def matches(self, names: Iterable[str], op: str | None) -> bool:
        """Whether the pattern fits any of the layer's names or, behind ``op:``, its operator."""
        if self.pattern.startswith(OP):
            return op is not None and fnmatchcase(op, self.pattern.removeprefix(OP))
        return any(fnmatchcase(name, self.pattern) for name in names)


def rules_field(settings: type[BaseModel], example: Mapping[str, object]) -> Read:
    """The SPECIFIC of one side. ``settings`` is what a rule may set; ``example`` is a valid value of it."""

    def parse(value: object) -> tuple[Rule, ...]:
        rules: list[Rule | None] = []
        errors: list[InitErrorDetails] = []
        for place, pattern, wanted in _entries(value, errors):
            rules.append(_read_rule(place, pattern, wanted, settings, example, errors))
        if errors:
            raise ValidationError.from_exception_data("SPECIFIC", errors)
        return tuple(rule for rule in rules if rule is not None)

    setting = {"anyOf": [{"type": "array"}, {"type": "object"}, {"type": "null"}]}
    one = {"type": "object", "additionalProperties": setting}
    return Read(parse, {"anyOf": [one, {"type": "array", "items": one}]})


def write_rules(rules: Sequence[Rule]) -> list[dict[str, list[Scalar]]]:
    """The rules in the old form; a pattern that comes back starts a further dict, since order matters."""
    written: list[dict[str, list[Scalar]]] = []
    for rule in rules:
        if not written or rule.pattern in written[-1]:
            written.append({})
        written[-1][rule.pattern] = [part for setting in rule.settings for part in setting]
    return written


Place = tuple[str, ...]


def _fail(
    errors: list[InitErrorDetails],
    place: Place,
    error: PydanticCustomError | str,
    value: object,
    context: dict[str, Any] | None = None,
) -> None:
    errors.append(InitErrorDetails(type=error, loc=place, input=value, ctx=context or {}))


def _entries(value: object, errors: list[InitErrorDetails]) -> Iterator[tuple[Place, str, object]]:
    """Each pattern with its settings, and where it stands."""
    if isinstance(value, Mapping):
        groups: Sequence[object] = [value]
    elif isinstance(value, list | tuple):
        groups = value
    else:
        _fail(errors, (), refuse("patterns with settings, or a list of such"), value)
        return
    for index, group in enumerate(groups):
        here: Place = (f"[{index}]",) if len(groups) > 1 else ()
        if isinstance(group, Rule):
            group = write_rules([group])[0]
        if not isinstance(group, Mapping):
            _fail(errors, here, refuse("patterns with settings"), group)
            continue
        for pattern, wanted in group.items():
            text = str(pattern) if isinstance(pattern, int) and not isinstance(pattern, bool) else pattern
            if not isinstance(text, str) or text.strip() in ("", OP):
                _fail(errors, here, refuse("a pattern such as conv1, layer1.* or op:conv2d"), pattern)
            else:
                yield (*here, f"[{text!r}]"), text, wanted


def _read_rule(
    place: Place,
    pattern: str,
    wanted: object,
    settings: type[BaseModel],
    example: Mapping[str, object],
    errors: list[InitErrorDetails],
) -> Rule | None:
    """One rule, its values read and checked by the same fields as those of the whole side."""
    before = len(errors)
    flat = _flatten(place, wanted, errors)
    if len(errors) > before:
        return None
    nested: dict[str, Any] = {}
    for key, value in flat.items():
        *above, last = key.split(".")
        section = section_at(nested, above)
        if section is None or last in section:
            _fail(errors, (*place, *above, last), refuse(*_TWICE), value)
            return None
        section[last] = value
    try:
        valid = settings.model_validate(merge(example, nested))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            kind: PydanticCustomError | str = detail["type"]
            if kind == "expected":
                kind = refuse(detail["ctx"]["expected"], detail["ctx"]["hint"])
            _fail(errors, (*place, *map(str, detail["loc"])), kind, detail["input"], detail.get("ctx"))
        return None
    found = {key: _value_at(valid, key) for key in flat}
    if BIT in found and DTYPE not in found and (dtype := _value_at(valid, DTYPE)) != "int":
        found[DTYPE] = dtype  # it was written as BIT: fp8_...
    return Rule(pattern, tuple(found.items()))


def _flatten(place: Place, wanted: object, errors: list[InitErrorDetails]) -> dict[str, object]:
    """Dotted keys to values, from a flat list or from keys with values, nested, dotted or both."""
    pairs: list[tuple[object, object]]
    if wanted is None:
        pairs = []
    elif isinstance(wanted, Mapping):
        pairs = list(wanted.items())
    elif isinstance(wanted, list | tuple):
        if len(wanted) % 2:
            advice = f"{show(wanted[-1])} has no partner"
            _fail(errors, place, refuse("pairs of subkey and value", advice), wanted)
            return {}
        pairs = list(zip(wanted[::2], wanted[1::2], strict=True))
    else:
        _fail(errors, place, refuse(RULE_WISH), wanted)
        return {}
    flat: dict[str, object] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            _fail(errors, place, refuse("a subkey such as QUANTIZER.BIT"), key)
            continue
        for path, leaf in leaves({key: value}):
            if path in flat:
                _fail(errors, (*place, *path.split(".")), refuse(*_TWICE), leaf)
            flat[path] = leaf
    return flat


def _value_at(model: object, key: str) -> Scalar:
    """The validated value of a dotted key; the last part may be the name of an option."""
    found: Any = model
    for part in key.split("."):
        found = found[part] if isinstance(found, Options) else getattr(found, part)
    return found  # type: ignore[no-any-return]
