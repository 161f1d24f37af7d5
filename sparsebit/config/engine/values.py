"""How single values are read from YAML: what is accepted, what it becomes, and what to say when it is neither.

The first Sparsebit read every value with ``ast.literal_eval``, so ``"8"``, ``1e-3`` (text, to a YAML 1.1 parser) and
``8.0`` all have to be numbers here.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from sparsebit.config.engine.problems import nearest, suggest
from sparsebit.config.quantization import names
from sparsebit.config.quantization.tensor_spec import (
    HIGHEST_BITS,
    LOWEST_BITS,
    SCHEMES,
    Layout,
    NumberFormat,
    Options,
    Scalar,
    Scheme,
    Side,
)
from sparsebit.targets import TARGETS

FP8: tuple[NumberFormat, ...] = ("fp8_e4m3", "fp8_e5m2")
BITS_WISH = f"an integer from {LOWEST_BITS} to {HIGHEST_BITS}, 0 for off, {' or '.join(FP8)}"
FIRST_LAST_WISH = f"an integer from {LOWEST_BITS} to {HIGHEST_BITS}, {', '.join(FP8)}, or float"


def refuse(expected: str, hint: str = "") -> PydanticCustomError:
    """An error that says what was expected; the reader of the config adds the place and the value."""
    return PydanticCustomError("expected", "expected {expected}", {"expected": expected, "hint": hint})


@dataclass(frozen=True, eq=False)
class Read:
    """Annotation of a field: the function that reads its value, and the JSON schema of what that accepts."""

    parse: Callable[[object], object]
    schema: Mapping[str, object]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)


def parse_number(value: object) -> float | None:
    """The number a value spells; None when it is not one. True is not 1 here."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def number(wish: str, inside: Callable[[float], bool], **limits: float) -> Read:
    """A real number for which ``inside`` holds; ``limits`` say the same in the words of JSON schema."""

    def parse(value: object) -> float:
        found = parse_number(value)
        if found is None or not inside(found):
            raise refuse(wish)
        return found

    return Read(parse, {"type": "number", **limits})


def parse_whole(value: object) -> int | None:
    """The whole number a value spells, also as 8.0 or "8"; None when it is not one."""
    found = parse_number(value)
    return int(found) if found is not None and found == int(found) else None


def parse_bits(value: object) -> int:
    """A number of bits, or 0 for off. The names of fp8 are taken out one level up, where DTYPE stands."""
    bits = parse_whole(value)
    if bits is None or not (bits == 0 or LOWEST_BITS <= bits <= HIGHEST_BITS):
        near = nearest(value, FP8) if isinstance(value, str) else None
        raise refuse(BITS_WISH, f"did you mean {near!r}?" if near else "")
    return bits


def parse_first_last(value: object) -> int | str:
    """What FIRST_LAST asks for; 0 is another way to say float."""
    if isinstance(value, str) and value.strip().lower() in ("float", *FP8):
        return value.strip().lower()
    bits = parse_whole(value)
    if bits is None or not (bits == 0 or LOWEST_BITS <= bits <= HIGHEST_BITS):
        raise refuse(FIRST_LAST_WISH)
    return bits or "float"


def parse_group_size(value: object) -> int:
    """The number of weights that share one scale."""
    size = parse_whole(value)
    if size is None or size < 2:
        raise refuse("an integer of at least 2")
    return size


def parse_flag(value: object) -> bool:
    """True or false, also as text."""
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        return value.strip().lower() == "true"
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise refuse("true or false")


def one_of(
    choices: Sequence[str],
    *,
    aliases: Mapping[str, str] | None = None,
    hints: Mapping[str, str] | None = None,
) -> Read:
    """One of a closed set of words in any capitals, with ``_`` for ``-`` or the reverse."""
    fold = {re.sub("[ _]", "-", choice.lower()): choice for choice in choices}
    fold |= {re.sub("[ _]", "-", alias.lower()): choice for alias, choice in (aliases or {}).items()}

    def parse(value: object) -> str:
        if isinstance(value, str):
            folded = re.sub("[ _]", "-", value.strip().lower())
            if folded in fold:
                return fold[folded]
            near = nearest(folded, fold)
            advice = (hints or {}).get(folded) or (f"did you mean {fold[near]!r}?" if near else "")
            raise refuse(f"one of {', '.join(choices)}", advice)
        raise refuse(f"one of {', '.join(choices)}")

    # JSON schema has no "ignore case": the plain words are what editors offer, the pattern is what they accept.
    pattern = f"^({'|'.join(_any_case(word) for word in fold)})$"
    return Read(parse, {"anyOf": [{"enum": list(choices)}, {"type": "string", "pattern": pattern}]})


def _any_case(word: str) -> str:
    letters = []
    for letter in word:
        if letter.isalpha():
            letters.append(f"[{letter.upper()}{letter}]")
        else:
            letters.append("[-_ ]" if letter == "-" else re.escape(letter))
    return "".join(letters)


def plug_in(kind: names.Kind) -> Read:
    """The name of a quantizer or observer, of ours or registered by somebody else."""

    def parse(value: object) -> str:
        known = list(names.RULES[kind])
        if isinstance(value, str) and (name := names.canonical_name(kind, value)) in names.RULES[kind]:
            return name
        advice = suggest(names.canonical_name(kind, str(value)), known)
        raise refuse(f"the name of {'an' if kind == 'observer' else 'a'} {kind}", advice)

    built_in = sorted(names.RULES[kind])
    return Read(parse, {"anyOf": [{"enum": built_in}, {"type": "string"}]})


def parse_patterns(value: object) -> tuple[str, ...]:
    """Patterns as a list, as one text, or as the text of a Python list or tuple, which were once taken."""
    if isinstance(value, str):
        value = _literal(value) if value.strip()[:1] in ("(", "[") else [value]
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
        raise refuse("a list of patterns such as [blocks.*.drop_path]")
    return tuple(value)


def _literal(text: str) -> object:
    """A Python literal, or the text itself; a fnmatch pattern may begin with a bracket too."""
    try:
        found = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        return [text]
    return found if isinstance(found, list | tuple) else [text]


def parse_backend(value: object) -> object:
    """The name of a target: ours, or one that was registered from outside."""
    return one_of(tuple(TARGETS)).parse(value)


def parse_device(value: object) -> str:
    """A device as torch names it, or auto."""
    if isinstance(value, str) and re.fullmatch(r"[a-z_]+(:\d+)?", value.strip().lower()):
        return value.strip().lower()
    raise refuse("auto or a device such as cpu, cuda or cuda:1")


def parse_options(value: object) -> Options:
    """Settings of a plug-in: names to plain values."""
    if not isinstance(value, Mapping):
        raise refuse("names with values, such as {window: 8}")
    for key, item in value.items():
        if not isinstance(key, str) or not key.isidentifier():
            raise refuse("names with values, such as {window: 8}", f"{key!r} is not a name")
        if not isinstance(item, Scalar) or (isinstance(item, float) and not math.isfinite(item)):
            raise refuse("a number, a text, true or false for each name", f"{key!r} holds {item!r}")
    return Options(value)


def _scheme(side: Side) -> Read:
    other = "for weights only" if side == "A" else "for activations only"
    elsewhere: dict[str, str] = {
        scheme: f"{scheme} is {other}" for scheme in SCHEMES if scheme not in names.SCHEMES_OF[side]
    }
    return one_of(names.SCHEMES_OF[side], hints=elsewhere)


_BITS_SCHEMA = {"type": "integer", "minimum": LOWEST_BITS, "maximum": HIGHEST_BITS}

Flag = Annotated[bool, Read(parse_flag, {"type": "boolean"})]
Wish = Annotated[bool | None, Read(parse_flag, {"type": "boolean"})]
Bits = Annotated[int, Read(parse_bits, {"anyOf": [{"enum": [0, *FP8]}, _BITS_SCHEMA]})]
FirstLast = Annotated[
    int | str | None, Read(parse_first_last, {"anyOf": [{"enum": ["float", 0, *FP8]}, _BITS_SCHEMA]})
]
GroupSize = Annotated[int, Read(parse_group_size, {"type": "integer", "minimum": 2})]
DType = Annotated[NumberFormat, one_of(("int", *FP8))]
WeightScheme = Annotated[Scheme, _scheme("W")]
ActivationScheme = Annotated[Scheme, _scheme("A")]
TensorLayout = Annotated[Layout, one_of(("NCHW", "NLC"))]
Backend = Annotated[str, Read(parse_backend, one_of(tuple(TARGETS)).schema)]
Distribution = Annotated[str, one_of(("gaus", "laplace"), aliases={"gauss": "gaus", "gaussian": "gaus"})]
QuantizerName = Annotated[str, plug_in("quantizer")]
ObserverName = Annotated[str, plug_in("observer")]
Device = Annotated[str, Read(parse_device, {"type": "string"})]
Patterns = Annotated[
    tuple[str, ...],
    Read(
        parse_patterns,
        {"anyOf": [{"type": "array", "items": {"type": "string", "minLength": 1}}, {"type": "string"}]},
    ),
]
PlugInOptions = Annotated[
    Options,
    Read(
        parse_options,
        {"type": "object", "additionalProperties": {"type": ["number", "string", "boolean"]}},
    ),
]
Positive = Annotated[float, number("a number above 0", lambda value: value > 0, exclusiveMinimum=0)]
Fraction = Annotated[
    float,
    number(
        "a number from 0 up to but not including 1",
        lambda value: 0 <= value < 1,
        minimum=0,
        exclusiveMaximum=1,
    ),
]
