"""How the values of a pruning config are read."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from sparsebit.config.engine.problems import suggest
from sparsebit.config.engine.values import Read, number, one_of, parse_whole, refuse
from sparsebit.config.pruning.criteria import SPARSER_RULES, TYPES, SparsityType, canonical_sparser

Scope = Literal["layer", "global"]
Target = Literal["units", "params", "macs", "latency"]
Aggregate = Literal["auto", "mean", "max", "sum", "first"]
Normalize = Literal["auto", "none", "mean", "max", "sum"]
ScheduleType = Literal["one-shot", "iterative", "cubic"]

NM_WISH = "how many of how many stay, such as 2:4"
BLOCK_WISH = "rows and columns of a block, such as 4x4 or [1, 8]"


def whole(wish: str, lowest: int) -> Read:
    """A whole number of at least ``lowest``."""

    def parse(value: object) -> int:
        found = parse_whole(value)
        if found is None or found < lowest:
            raise refuse(wish)
        return found

    return Read(parse, {"type": "integer", "minimum": lowest})


def parse_sparser(value: object) -> str:
    """The name of a criterion, of ours or registered by somebody else."""
    if isinstance(value, str) and (name := canonical_sparser(value)) in SPARSER_RULES:
        return name
    advice = suggest(canonical_sparser(str(value)), list(SPARSER_RULES))
    raise refuse("the name of a pruning criterion", advice)


def parse_nm(value: object) -> tuple[int, int]:
    """``2:4`` or ``[2, 4]``: of every 4 neighbours, 2 stay."""
    pair: object = value
    if isinstance(value, str) and (found := re.fullmatch(r"\s*(\d+)\s*[:/x]\s*(\d+)\s*", value)):
        pair = [int(found[1]), int(found[2])]
    elif isinstance(value, int) and not isinstance(value, bool) and value >= 60:
        pair = list(divmod(value, 60))  # YAML 1.1 reads a bare 2:4 as minutes and seconds: 124
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise refuse(NM_WISH)
    kept, of = (parse_whole(part) for part in pair)
    if kept is None or of is None or not 1 <= kept < of:
        raise refuse(NM_WISH)
    return kept, of


def parse_block(value: object) -> tuple[int, int]:
    """``4x4``, ``[4, 4]`` or ``4``: rows (outputs) and columns (inputs) that stay or go together."""
    pair: object = value
    if isinstance(value, str) and (found := re.fullmatch(r"\s*(\d+)\s*[x×*,]\s*(\d+)\s*", value)):
        pair = [int(found[1]), int(found[2])]
    elif (side := parse_whole(value)) is not None:
        pair = [side, side]
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise refuse(BLOCK_WISH)
    rows, columns = (parse_whole(part) for part in pair)
    if rows is None or columns is None or rows < 1 or columns < 1 or rows * columns < 2:
        raise refuse(BLOCK_WISH)
    return rows, columns


_PAIR = {"type": "array", "items": {"type": "integer", "minimum": 1}}

TypeOfSparsity = Annotated[
    SparsityType,
    one_of(
        TYPES,
        aliases={
            "structed": "structured",
            "unstructed": "unstructured",
            "channel": "structured",
            "n:m": "nm",
        },
    ),
]
SparserName = Annotated[
    str, Read(parse_sparser, {"anyOf": [{"enum": sorted(SPARSER_RULES)}, {"type": "string"}]})
]
_PART = number(
    "a number from 0 up to but not including 1", lambda value: 0 <= value < 1, minimum=0, exclusiveMaximum=1
)
Ratio = Annotated[float, _PART]
OptionalRatio = Annotated[float | None, _PART]
Multiple = Annotated[int, whole("an integer of at least 1", 1)]
StepCount = Annotated[int, whole("an integer of at least 0", 0)]
HowMany = Annotated[tuple[int, int], Read(parse_nm, {"anyOf": [{"type": "string"}, _PAIR]})]
BlockShape = Annotated[
    tuple[int, int],
    Read(parse_block, {"anyOf": [{"type": "string"}, _PAIR, {"type": "integer", "minimum": 2}]}),
]
ScopeWord = Annotated[Scope, one_of(("layer", "global"), aliases={"local": "layer", "per-layer": "layer"})]
TargetWord = Annotated[
    Target,
    one_of(
        ("units", "params", "macs", "latency"),
        aliases={"channels": "units", "weights": "units", "parameters": "params", "flops": "macs"},
    ),
]
AggregateWord = Annotated[Aggregate, one_of(("auto", "mean", "max", "sum", "first"))]
NormalizeWord = Annotated[Normalize, one_of(("auto", "none", "mean", "max", "sum"))]
ScheduleWord = Annotated[
    ScheduleType,
    one_of(
        ("one-shot", "iterative", "cubic"),
        aliases={"oneshot": "one-shot", "once": "one-shot", "agp": "cubic", "linear": "iterative"},
    ),
]
LargestRatio = Annotated[
    float,
    number(
        "a number above 0 and up to 1",
        lambda value: 0 < value <= 1,
        exclusiveMinimum=0,
        maximum=1,
    ),
]
