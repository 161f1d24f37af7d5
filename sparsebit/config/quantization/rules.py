"""Which settings go together: the checks that need more than one key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sparsebit.config.engine.problems import Problem, suggest
from sparsebit.config.engine.specific import BIT, DTYPE, Rule
from sparsebit.config.quantization.names import RULES, Kind, names_for
from sparsebit.config.quantization.resolve import (
    OPTION_KEYS,
    Flat,
    apply_first_last,
    apply_settings,
    flatten_side,
    make_spec,
)
from sparsebit.config.quantization.sections import ActivationSection, QConfigKeys, WeightSection
from sparsebit.config.quantization.tensor_spec import SIDE_WORD, SIDES, Side, TensorSpec
from sparsebit.targets import TARGETS, Row

QSCHEME, GROUP_SIZE = "QSCHEME", "GROUP_SIZE"
NUMBERS = frozenset({BIT, DTYPE})


@dataclass(frozen=True, kw_only=True)
class Clash:
    """Settings of one side that cannot stand together."""

    key: str  # the one to change
    keys: frozenset[str]  # all that play a part
    expected: str
    got: str
    because: str
    also: frozenset[str] = frozenset()  # keys outside the side that play a part


def clashes(flat: Flat, side: Side, *, backend: str, bn_tuning: bool) -> list[Clash]:
    """Everything that is wrong with one combination of settings. A tensor in float has no wrong settings."""
    spec = make_spec(flat, side)
    if not spec.enabled:
        return []
    return [
        *_fp8_clashes(spec),
        *_name_clashes(spec, side, "quantizer"),
        *_name_clashes(spec, side, "observer"),
        *_option_clashes(flat, "quantizer"),
        *_option_clashes(flat, "observer"),
        *_backend_clashes(spec, side, backend),
        *(_bn_tuning_clashes(spec) if bn_tuning and side == "W" else ()),
    ]


def _fp8_clashes(spec: TensorSpec) -> Iterator[Clash]:
    if spec.dtype != "int" and not spec.symmetric:
        yield Clash(
            key=QSCHEME,
            keys=NUMBERS | {QSCHEME},
            expected=f"a symmetric scheme with {spec.dtype}",
            got=repr(spec.scheme),
            because="an 8-bit float has a sign and a zero of its own",
        )


def _name_clashes(spec: TensorSpec, side: Side, kind: Kind) -> Iterator[Clash]:
    """The side, the scheme and the number format must be among those its rule lists."""
    name = spec.quantizer if kind == "quantizer" else spec.observer
    rule, key = RULES[kind][name], f"{kind.upper()}.TYPE"
    because = rule.because or f"{name} was registered for these only"
    article = "an" if kind == "observer" else "a"
    if not rule.schemes.get(side):
        yield Clash(
            key=key,
            keys=frozenset({key}),
            expected=f"{article} {kind} for {SIDE_WORD[side]} ({', '.join(names_for(kind, side))})",
            got=repr(name),
            because=because,
        )
    elif spec.scheme not in rule.schemes[side]:
        yield Clash(
            key=QSCHEME,
            keys=frozenset({key, QSCHEME}),
            expected=f"{_alternatives(rule.schemes[side])} with {kind} {name}",
            got=repr(spec.scheme),
            because=because,
        )
    if spec.dtype not in rule.dtypes:
        yield Clash(
            key=key,
            keys=NUMBERS | {key},
            expected=f"{article} {kind} for {spec.dtype} ({', '.join(_names_for_dtype(kind, side, spec))})",
            got=repr(name),
            because=f"{name} works on integer codes",
        )


def _names_for_dtype(kind: Kind, side: Side, spec: TensorSpec) -> list[str]:
    return [name for name in names_for(kind, side) if spec.dtype in RULES[kind][name].dtypes]


def _option_clashes(flat: Flat, kind: Kind) -> Iterator[Clash]:
    """OPTIONS may hold what the plug-in said it takes, and nothing that has a key of its own."""
    section = kind.upper()
    name = str(flat[f"{section}.TYPE"])
    known, own = RULES[kind][name].options, OPTION_KEYS.get((section, name), {})
    for key in flat:
        option = key.removeprefix(f"{section}.OPTIONS.")
        if option == key:
            continue
        if option in own:
            wish, advice = f"{own[option]} for this", "it has a key of its own"
        elif known is not None and option not in known:
            wish = f"an option of {name}"
            advice = suggest(option, known) if known else f"{name} has no options"
        else:
            continue
        yield Clash(
            key=key, keys=frozenset({key, f"{section}.TYPE"}), expected=wish, got=repr(option), because=advice
        )


def _backend_clashes(spec: TensorSpec, side: Side, backend: str) -> Iterator[Clash]:
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
            yield Clash(
                key=key,
                keys=keys if alone else keys | before,
                expected=f"{_wish(rows, aspect)} with BACKEND {backend}",
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


def _wish(rows: Sequence[Row], aspect: str) -> str:
    if aspect == "dtype":
        return _alternatives(dict.fromkeys(row.dtype for row in rows))
    if aspect == "scheme":
        return _alternatives(dict.fromkeys(scheme for row in rows for scheme in row.schemes))
    if aspect == "bits":
        bits = sorted({bit for row in rows for bit in row.bits})
        return f"{bits[0]} to {bits[-1]} bits" if len(bits) > 1 else f"{bits[0]} bits"
    return _alternatives(str(size) for row in rows for size in row.group_sizes or ())


def _got(spec: TensorSpec, aspect: str) -> str:
    value = {"dtype": spec.dtype, "scheme": spec.scheme, "bits": spec.bits, "group_size": spec.group_size}[
        aspect
    ]
    return repr(value)


def _bn_tuning_clashes(spec: TensorSpec) -> Iterator[Clash]:
    if spec.granularity != "channel":
        yield Clash(
            key=QSCHEME,
            keys=frozenset({QSCHEME}),
            expected="per-channel-symmetric or per-channel-affine with SCHEDULE.BN_TUNING",
            got=repr(spec.scheme),
            because="rule: batch norm is folded into the scale of each channel afterwards",
            also=frozenset({"SCHEDULE.BN_TUNING"}),
        )


def _alternatives(words: Iterator[str] | Sequence[str] | Mapping[str, object]) -> str:
    *most, last = list(words)
    return f"{', '.join(most)} or {last}" if most else last


def config_problems(config: QConfigKeys) -> list[Problem]:
    """Everything wrong with a config beyond its single values: both sides, FIRST_LAST, and each rule."""
    found: list[Problem] = []
    for side in SIDES:
        section: WeightSection | ActivationSection = getattr(config, side)
        base = flatten_side(section)
        wrong = _of(config, base, side)
        found += [_problem(f"{side}.{clash.key}", clash, side) for clash in wrong]
        if config.FIRST_LAST is not None:
            for clash in _of(config, apply_first_last(base, config.FIRST_LAST), side):
                if clash.key in NUMBERS or (clash.keys & NUMBERS and clash not in wrong):
                    found.append(_problem("FIRST_LAST", clash, side, f"for {SIDE_WORD[side]}"))
        for rule in section.SPECIFIC:
            others = {key for other in section.SPECIFIC for key, _ in other.settings if other is not rule}
            found += _rule_problems(config, base, wrong, side, rule, others)
    return found


def _rule_problems(
    config: QConfigKeys, base: Flat, wrong: Sequence[Clash], side: Side, rule: Rule, others: set[str]
) -> Iterator[Problem]:
    """What one rule breaks by itself.

    Where another rule sets a key that plays a part, the two may be meant to meet on a layer; that can only be seen
    once the layers are known, and ``spec_for`` looks again then.
    """
    settings = dict(rule.settings)
    changed = apply_settings(base, settings)
    touched = {key for key in changed if changed[key] != base.get(key)} | set(settings)
    for clash in _of(config, changed, side):
        told = clash in wrong and clash.key not in settings
        if clash.keys & touched and not told and not (clash.keys - touched) & others:
            place = f"{side}.SPECIFIC[{rule.pattern!r}]"
            yield _problem(f"{place}.{clash.key}" if clash.key in settings else place, clash, side)


def _of(config: QConfigKeys, flat: Flat, side: Side) -> list[Clash]:
    return clashes(flat, side, backend=config.BACKEND, bn_tuning=config.SCHEDULE.BN_TUNING)


def _problem(path: str, clash: Clash, side: Side, whom: str = "") -> Problem:
    return Problem(
        path=path,
        message=whom,
        expected=clash.expected,
        got=clash.got,
        hint=clash.because,
        keys=clash.also | {f"{side}.{key}" for key in clash.keys},
    )
