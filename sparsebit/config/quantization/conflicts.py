"""Which settings can be used together: the checks that involve more than one key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from sparsebit.config.engine.plugins import wrong_options
from sparsebit.config.engine.problems import Problem, either
from sparsebit.config.quantization.plugins import RULES, Kind, names_for
from sparsebit.config.quantization.resolve import (
    BIT,
    DTYPE,
    OPTION_KEYS,
    Flat,
    apply_first_last,
    apply_settings,
    flatten_side,
    make_spec,
    options_of,
)
from sparsebit.config.quantization.sections import ActivationSection, WeightSection
from sparsebit.config.quantization.tensor_spec import TensorSpec
from sparsebit.errors import with_article
from sparsebit.targets import TARGETS, Row
from sparsebit.targets.schemes import SIDE_WORD, Side

QSCHEME, GROUP_SIZE = "QSCHEME", "GROUP_SIZE"
NUMBERS = frozenset({BIT, DTYPE})
MODEL_KEYS = frozenset({"BACKEND", "SCHEDULE.BN_TUNING"})  # keys that belong to neither side


def conflicts(flat: Flat, side: Side, *, backend: str, bn_tuning: bool) -> list[Problem]:
    """All conflicts in one combination of settings. For a tensor in float there are none.

    The path of a problem is the key to change, and ``keys`` are all keys involved, both without the side.
    """
    spec = make_spec(flat, side)
    if not spec.enabled:
        return []
    return [
        *_fp8_conflicts(spec),
        *_name_conflicts(spec, side, "quantizer"),
        *_name_conflicts(spec, side, "observer"),
        *_option_conflicts(flat, "quantizer"),
        *_option_conflicts(flat, "observer"),
        *_backend_conflicts(spec, side, backend),
        *(_bn_tuning_conflicts(spec) if bn_tuning and side == "W" else ()),
    ]


def _conflict(key: str, keys: Iterable[str], expected: str, got: object, because: str) -> Problem:
    return Problem(path=key, keys=frozenset(keys), expected=expected, got=repr(got), hint=because)


def _fp8_conflicts(spec: TensorSpec) -> Iterator[Problem]:
    if spec.dtype != "int" and not spec.symmetric:
        because = "an 8-bit float has a sign and a zero of its own"
        expected = f"a symmetric scheme with {spec.dtype}"
        yield _conflict(QSCHEME, NUMBERS | {QSCHEME}, expected, spec.scheme, because)


def _name_conflicts(spec: TensorSpec, side: Side, kind: Kind) -> Iterator[Problem]:
    """The side, the scheme and the number format must be among those its rule lists."""
    name = spec.quantizer if kind == "quantizer" else spec.observer
    rule, key = RULES[kind][name], f"{kind.upper()}.TYPE"
    because = rule.because or f"{name} was registered for these only"
    if not rule.schemes.get(side):
        expected = f"{with_article(kind)} for {SIDE_WORD[side]} ({', '.join(names_for(kind, side))})"
        yield _conflict(key, {key}, expected, name, because)
    elif spec.scheme not in rule.schemes[side]:
        expected = f"{either(rule.schemes[side])} with {kind} {name}"
        yield _conflict(QSCHEME, {key, QSCHEME}, expected, spec.scheme, because)
    if spec.dtype not in rule.dtypes:
        fitting = [other for other in names_for(kind, side) if spec.dtype in RULES[kind][other].dtypes]
        expected = f"{with_article(kind)} for {spec.dtype} ({', '.join(fitting)})"
        yield _conflict(key, NUMBERS | {key}, expected, name, f"{name} works on integers")


def _option_conflicts(flat: Flat, kind: Kind) -> Iterator[Problem]:
    """OPTIONS may contain the options that the plug-in declares, except those with a dedicated key."""
    section = kind.upper()
    name, prefix = str(flat[f"{section}.TYPE"]), f"{section}.OPTIONS"
    given = [key.removeprefix(f"{prefix}.") for key in flat if key.startswith(f"{prefix}.")]
    own = OPTION_KEYS.get((section, name), {})
    if twice := [option for option in given if option in own]:
        for option in twice:
            key = f"{prefix}.{option}"
            keys = {key, f"{section}.TYPE"}
            yield _conflict(key, keys, f"{own[option]} for this", option, "it has a dedicated key")
        return
    keys = {f"{section}.TYPE", *own.values(), *(f"{prefix}.{option}" for option in given)}
    for wrong in wrong_options(name, RULES[kind][name], options_of(flat, section)):
        key = own.get(wrong.path) or f"{prefix}.{wrong.path}".rstrip(".")
        yield replace(wrong, path=key, keys=frozenset(keys))


def _backend_conflicts(spec: TensorSpec, side: Side, backend: str) -> Iterator[Problem]:
    """The first of number format, scheme, bits and group size that no row of the backend's table accepts."""
    accepts = TARGETS[backend].accepts.get(side)
    if accepts is None:
        return
    rows, before = accepts.rows, frozenset[str]()
    for aspect, value, key, keys in (
        ("dtype", spec.dtype, DTYPE if spec.dtype != "int" else BIT, NUMBERS),
        ("scheme", spec.scheme, QSCHEME, frozenset({QSCHEME})),
        ("bits", spec.bits, BIT, NUMBERS),
        ("group_size", spec.group_size, GROUP_SIZE, frozenset({GROUP_SIZE})),
    ):
        left = [row for row in rows if value in _taken(row, aspect, value)]
        if not left:
            # Another value of an earlier aspect might allow this one: then that key is involved too.
            alone = not any(value in _taken(row, aspect, value) for row in accepts.rows)
            accepted = list(dict.fromkeys(one for row in rows for one in _taken(row, aspect, value)))
            words = f"{either(map(str, accepted))}{' bits' if aspect == 'bits' else ''}"
            if aspect == "bits" and len(accepted) > 1:
                words = f"{min(accepted)} to {max(accepted)} bits"
            keys = (keys if alone else keys | before) | {"BACKEND"}
            because = f"rule: {getattr(accepts, aspect)}"
            yield _conflict(key, keys, f"{words} with BACKEND {backend}", value, because)
            return
        rows, before = tuple(left), before | keys


def _taken(row: Row, aspect: str, value: Any) -> tuple[Any, ...]:
    """The values that a row accepts; ``value`` itself if it accepts any, or if there is no row."""
    sizes = row.group_sizes if value is not None else None
    taken = {"dtype": (row.dtype,), "scheme": row.schemes, "bits": row.bits, "group_size": sizes}[aspect]
    return (value,) if taken is None else taken


def _bn_tuning_conflicts(spec: TensorSpec) -> Iterator[Problem]:
    if spec.granularity != "channel":
        expected = "per-channel-symmetric or per-channel-affine with SCHEDULE.BN_TUNING"
        because = "rule: batch norm is folded into the scale of each channel afterwards"
        yield _conflict(QSCHEME, {QSCHEME, "SCHEDULE.BN_TUNING"}, expected, spec.scheme, because)


def side_problems(
    side: Side,
    section: WeightSection | ActivationSection,
    *,
    backend: str,
    bn_tuning: bool,
    first_last: int | str | None,
) -> Iterator[Problem]:
    """All conflicts on one side: in the base settings, with FIRST_LAST applied to them, and with each rule."""

    def find(flat: Flat) -> list[Problem]:
        return conflicts(flat, side, backend=backend, bn_tuning=bn_tuning)

    def told(path: str, conflict: Problem, about: str = "") -> Problem:
        keys = {key if key in MODEL_KEYS else f"{side}.{key}" for key in conflict.keys}
        return replace(conflict, path=path, message=about, keys=frozenset(keys))

    base = flatten_side(section)
    wrong = find(base)
    for conflict in wrong:
        yield told(f"{side}.{conflict.path}", conflict)
    if first_last is not None:
        for conflict in find(apply_first_last(base, first_last)):
            if conflict.path in NUMBERS or (conflict.keys & NUMBERS and conflict not in wrong):
                yield told("FIRST_LAST", conflict, f"for {SIDE_WORD[side]}")
    for rule in section.SPECIFIC:
        settings = dict(rule.settings)
        changed = apply_settings(base, settings)
        touched = {key for key in changed if changed[key] != base.get(key)} | set(settings)
        # If another rule sets a key that is involved, both may be meant to apply to one layer. That can only be
        # checked once the layers are known, in ``spec_for``.
        others = {key for other in section.SPECIFIC for key, _ in other.settings if other is not rule}
        for conflict in find(changed):
            repeated = conflict in wrong and conflict.path not in settings
            if conflict.keys & touched and not repeated and not (conflict.keys - touched) & others:
                place = f"{side}.SPECIFIC[{rule.pattern!r}]"
                yield told(f"{place}.{conflict.path}" if conflict.path in settings else place, conflict)
