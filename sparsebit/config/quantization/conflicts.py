"""Which settings go together: the checks that need more than one key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
from sparsebit.targets import TARGETS, Row
from sparsebit.targets.schemes import SIDE_WORD, Side

QSCHEME, GROUP_SIZE = "QSCHEME", "GROUP_SIZE"
NUMBERS = frozenset({BIT, DTYPE})


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """Settings of one side that cannot be used together."""

    key: str  # the one to change
    keys: frozenset[str]  # every key that plays a part
    expected: str
    got: str
    because: str
    also: frozenset[str] = frozenset()  # keys outside the side that play a part


def conflicts(flat: Flat, side: Side, *, backend: str, bn_tuning: bool) -> list[Conflict]:
    """Everything that is wrong with one combination of settings. A tensor in float has no wrong settings."""
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


def _fp8_conflicts(spec: TensorSpec) -> Iterator[Conflict]:
    if spec.dtype != "int" and not spec.symmetric:
        yield Conflict(
            key=QSCHEME,
            keys=NUMBERS | {QSCHEME},
            expected=f"a symmetric scheme with {spec.dtype}",
            got=repr(spec.scheme),
            because="an 8-bit float has a sign and a zero of its own",
        )


def _name_conflicts(spec: TensorSpec, side: Side, kind: Kind) -> Iterator[Conflict]:
    """The side, the scheme and the number format must be among those its rule lists."""
    name = spec.quantizer if kind == "quantizer" else spec.observer
    rule, key = RULES[kind][name], f"{kind.upper()}.TYPE"
    because = rule.because or f"{name} was registered for these only"
    article = "an" if kind == "observer" else "a"
    if not rule.schemes.get(side):
        yield Conflict(
            key=key,
            keys=frozenset({key}),
            expected=f"{article} {kind} for {SIDE_WORD[side]} ({', '.join(names_for(kind, side))})",
            got=repr(name),
            because=because,
        )
    elif spec.scheme not in rule.schemes[side]:
        yield Conflict(
            key=QSCHEME,
            keys=frozenset({key, QSCHEME}),
            expected=f"{either(rule.schemes[side])} with {kind} {name}",
            got=repr(spec.scheme),
            because=because,
        )
    if spec.dtype not in rule.dtypes:
        yield Conflict(
            key=key,
            keys=NUMBERS | {key},
            expected=f"{article} {kind} for {spec.dtype} ({', '.join(_names_for_dtype(kind, side, spec))})",
            got=repr(name),
            because=f"{name} works on integers",
        )


def _names_for_dtype(kind: Kind, side: Side, spec: TensorSpec) -> list[str]:
    return [name for name in names_for(kind, side) if spec.dtype in RULES[kind][name].dtypes]


def _option_conflicts(flat: Flat, kind: Kind) -> Iterator[Conflict]:
    """OPTIONS may hold what the plug-in declares, and nothing that has a key of its own."""
    section = kind.upper()
    name, prefix = str(flat[f"{section}.TYPE"]), f"{section}.OPTIONS"
    given = [key.removeprefix(f"{prefix}.") for key in flat if key.startswith(f"{prefix}.")]
    own = OPTION_KEYS.get((section, name), {})
    if twice := [option for option in given if option in own]:
        for option in twice:
            key = f"{prefix}.{option}"
            keys = frozenset({key, f"{section}.TYPE"})
            expected, because = f"{own[option]} for this", "it has a key of its own"
            yield Conflict(key=key, keys=keys, expected=expected, got=repr(option), because=because)
        return
    for wrong in wrong_options(name, RULES[kind][name], options_of(flat, section)):
        key = own.get(wrong.name) or (f"{prefix}.{wrong.name}" if wrong.name else prefix)
        keys = frozenset({f"{section}.TYPE", *own.values(), *(f"{prefix}.{option}" for option in given)})
        yield Conflict(key=key, keys=keys, expected=wrong.expected, got=wrong.got, because=wrong.hint)


def _backend_conflicts(spec: TensorSpec, side: Side, backend: str) -> Iterator[Conflict]:
    """The first of number format, scheme, bits and group size that no row of the backend's table takes."""
    accepts = TARGETS[backend].accepts.get(side)
    if accepts is None:
        return
    rows, before = accepts.rows, frozenset[str]()
    for aspect, key, keys in (
        ("dtype", DTYPE if spec.dtype != "int" else BIT, NUMBERS),
        ("scheme", QSCHEME, frozenset({QSCHEME})),
        ("bits", BIT, NUMBERS),
        ("group_size", GROUP_SIZE, frozenset({GROUP_SIZE})),
    ):
        left = [row for row in rows if _takes(row, spec, aspect)]
        if not left:
            # Another value of an earlier aspect might let this one through: then that key plays a part too.
            alone = not any(_takes(row, spec, aspect) for row in accepts.rows)
            yield Conflict(
                key=key,
                keys=keys if alone else keys | before,
                expected=f"{_accepted(rows, aspect)} with BACKEND {backend}",
                got=_got(spec, aspect),
                because=f"rule: {getattr(accepts, aspect)}",
                also=frozenset({"BACKEND"}),
            )
            return
        rows, before = tuple(left), before | keys


def _takes(row: Row, spec: TensorSpec, aspect: str) -> bool:
    if aspect == "dtype":
        return spec.dtype == row.dtype
    if aspect == "scheme":
        return spec.scheme in row.schemes
    if aspect == "bits":
        return spec.bits in row.bits
    return spec.group_size is None or row.group_sizes is None or spec.group_size in row.group_sizes


def _accepted(rows: Sequence[Row], aspect: str) -> str:
    if aspect == "dtype":
        return either(dict.fromkeys(row.dtype for row in rows))
    if aspect == "scheme":
        return either(dict.fromkeys(scheme for row in rows for scheme in row.schemes))
    if aspect == "bits":
        bits = sorted({bit for row in rows for bit in row.bits})
        return f"{bits[0]} to {bits[-1]} bits" if len(bits) > 1 else f"{bits[0]} bits"
    return either(str(size) for row in rows for size in row.group_sizes or ())


def _got(spec: TensorSpec, aspect: str) -> str:
    value = {"dtype": spec.dtype, "scheme": spec.scheme, "bits": spec.bits, "group_size": spec.group_size}[
        aspect
    ]
    return repr(value)


def _bn_tuning_conflicts(spec: TensorSpec) -> Iterator[Conflict]:
    if spec.granularity != "channel":
        yield Conflict(
            key=QSCHEME,
            keys=frozenset({QSCHEME}),
            expected="per-channel-symmetric or per-channel-affine with SCHEDULE.BN_TUNING",
            got=repr(spec.scheme),
            because="rule: batch norm is folded into the scale of each channel afterwards",
            also=frozenset({"SCHEDULE.BN_TUNING"}),
        )


def side_problems(
    side: Side,
    section: WeightSection | ActivationSection,
    *,
    backend: str,
    bn_tuning: bool,
    first_last: int | str | None,
) -> Iterator[Problem]:
    """Everything wrong with one side beyond its single values: the base, FIRST_LAST on top of it, and each rule."""

    def find(flat: Flat) -> list[Conflict]:
        return conflicts(flat, side, backend=backend, bn_tuning=bn_tuning)

    base = flatten_side(section)
    wrong = find(base)
    for conflict in wrong:
        yield _problem(f"{side}.{conflict.key}", conflict, side)
    if first_last is not None:
        for conflict in find(apply_first_last(base, first_last)):
            if conflict.key in NUMBERS or (conflict.keys & NUMBERS and conflict not in wrong):
                yield _problem("FIRST_LAST", conflict, side, f"for {SIDE_WORD[side]}")
    for rule in section.SPECIFIC:
        settings = dict(rule.settings)
        changed = apply_settings(base, settings)
        touched = {key for key in changed if changed[key] != base.get(key)} | set(settings)
        # Where another rule sets a key that plays a part, the two may be meant to meet on a layer; that can only be
        # seen once the layers are known, and ``spec_for`` looks again then.
        others = {key for other in section.SPECIFIC for key, _ in other.settings if other is not rule}
        for conflict in find(changed):
            told = conflict in wrong and conflict.key not in settings
            if conflict.keys & touched and not told and not (conflict.keys - touched) & others:
                place = f"{side}.SPECIFIC[{rule.pattern!r}]"
                yield _problem(_place(place, conflict, settings), conflict, side)


def _place(rule: str, conflict: Conflict, settings: Flat) -> str:
    return f"{rule}.{conflict.key}" if conflict.key in settings else rule


def _problem(path: str, conflict: Conflict, side: Side, about: str = "") -> Problem:
    return Problem(
        path=path,
        message=about,
        expected=conflict.expected,
        got=conflict.got,
        hint=conflict.because,
        keys=conflict.also | {f"{side}.{key}" for key in conflict.keys},
    )
