"""Every key of a pruning config: how it is read, its default, and one line on what it means."""

from __future__ import annotations

import re
from typing import Literal, get_args

from sparsebit.config.engine import values
from sparsebit.config.engine.options import Options
from sparsebit.config.engine.section import Section, key
from sparsebit.config.engine.specific import Rule, rules
from sparsebit.config.engine.values import FLAG, Read, Refused, number, one_of, parse_whole, whole
from sparsebit.config.pruning.criteria import SPARSER_RULES, TYPES, SparsityType

Scope = Literal["layer", "global"]
Target = Literal["units", "params", "macs", "latency"]
Aggregate = Literal["auto", "mean", "max", "sum", "first"]
Normalize = Literal["auto", "none", "mean", "max", "sum"]
ScheduleType = Literal["one-shot", "iterative", "cubic"]


def _parse_ratio(value: object) -> object:
    """The fraction that is pruned. Some old files have 1 for "leave the layer unchanged"."""
    number_of = values.parse_number(value)
    hint = "to leave a layer unchanged write 0" if number_of == 1 else ""
    try:
        return values.FRACTION.parse(value)
    except Refused as error:
        raise Refused(error.expected, hint) from None


def _pair(value: object, separators: str) -> tuple[int | None, int | None]:
    """Two whole numbers, as a list or as one text."""
    if isinstance(value, str) and (found := re.fullmatch(rf"\s*(\d+)\s*[{separators}]\s*(\d+)\s*", value)):
        value = [found[1], found[2]]
    if not isinstance(value, list | tuple) or len(value) != 2:
        return None, None
    return parse_whole(value[0]), parse_whole(value[1])


def _parse_nm(value: object) -> tuple[int, int]:
    """``2:4`` or ``[2, 4]``: of every 4 consecutive weights, 2 are kept."""
    kept, of = _pair(value, ":/x")
    if kept is None or of is None or not 1 <= kept < of:
        raise Refused(NM.expected)
    return kept, of


def _parse_block(value: object) -> tuple[int, int]:
    """``4x4``, ``[4, 4]`` or ``4``: rows (outputs) and columns (inputs) that are kept or removed together."""
    side = parse_whole(value)
    rows, columns = _pair(value, "x×*,") if side is None else (side, side)
    if rows is None or columns is None or rows < 1 or columns < 1 or rows * columns < 2:
        raise Refused(BLOCK.expected)
    return rows, columns


_PAIR = {"type": "array", "items": {"type": "integer", "minimum": 1}}
NM = Read(
    _parse_nm, "N:M, which keeps N of every M weights, such as 2:4", {"anyOf": [{"type": "string"}, _PAIR]}
)
BLOCK = Read(
    _parse_block,
    "rows and columns of a block, such as 4x4 or [1, 8]",
    {"anyOf": [{"type": "string"}, _PAIR, {"type": "integer", "minimum": 2}]},
)
RATIO = Read(_parse_ratio, values.FRACTION.expected, values.FRACTION.schema)
TYPE = one_of(
    TYPES,
    aliases={"structed": "structured", "unstructed": "unstructured", "channel": "structured", "n:m": "nm"},
)
SCOPE = one_of(get_args(Scope), aliases={"local": "layer", "per-layer": "layer"})
TARGET = one_of(
    get_args(Target),
    aliases={"channels": "units", "weights": "units", "parameters": "params", "flops": "macs"},
)
SCHEDULE_TYPE = one_of(
    get_args(ScheduleType),
    aliases={"oneshot": "one-shot", "once": "one-shot", "agp": "cubic", "linear": "iterative"},
)
MOST = number("a number above 0 and up to 1", lambda value: 0 < value <= 1, exclusiveMinimum=0, maximum=1)


class LayerSettings(Section):
    """Pruning settings, for the complete model or for some layers under SPECIFIC."""

    STRATEGY: str = key(
        SPARSER_RULES.reader(), "The criterion that scores what may be removed.", required_as="l1norm"
    )
    RATIO: float | None = key(RATIO, "The fraction to remove; 0 removes nothing.", default=None)
    ROUND_TO: int = key(whole(1), "Remaining widths are multiples of this; 1 turns rounding off.", default=8)
    NM: tuple[int, int] = key(
        NM, "Of every M consecutive weights along the inputs, N are kept.", default=(2, 4)
    )
    BLOCK: tuple[int, int] = key(
        BLOCK, "Rows and columns of a block that is kept or removed.", default=(4, 4)
    )


class SparserSection(LayerSettings):
    """What to prune, by which criterion, and how much."""

    TYPE: SparsityType = key(
        TYPE, "What is removed: channels, single weights, N of every M, or blocks.", required_as="structured"
    )
    SCOPE: Scope = key(
        SCOPE, "Whether RATIO applies to every layer, or to all layers together.", default="layer"
    )
    TARGET: Target = key(
        TARGET, "What RATIO is a fraction of: units, parameters, MACs or measured latency.", default="units"
    )
    AGGREGATE: Aggregate = key(
        one_of(get_args(Aggregate)),
        "How the scores of coupled layers are combined; auto depends on the criterion.",
        default="auto",
    )
    NORMALIZE: Normalize = key(
        one_of(get_args(Normalize)),
        "How the scores of different layers are made comparable in global scope.",
        default="auto",
    )
    MAX_RATIO: float = key(
        MOST,
        "The largest fraction that one layer may lose if RATIO applies to all layers together.",
        default=0.9,
    )
    PRUNE_BIAS: bool = key(
        FLAG,
        "Remove the biases of removed channels; false keeps them and adds their effect to the next layer.",
        default=True,
    )
    CLASSIFIER: bool = key(FLAG, "Also prune the layers that compute the outputs.", default=False)
    OPTIONS: Options = key(values.OPTIONS, "Settings of the criterion.", default=Options())
    SPECIFIC: tuple[Rule, ...] = rules(LayerSettings)


class ScheduleSection(Section):
    """When to prune, in calls of ``step``."""

    TYPE: ScheduleType = key(
        SCHEDULE_TYPE, "All at once, in equal steps, or cubic (AGP).", default="one-shot"
    )
    START: int = key(whole(0), "The step of the first change.", default=0)
    EVERY: int = key(whole(1), "Steps from one change to the next.", default=1)
    TIMES: int = key(whole(1), "Number of changes until RATIO is reached.", default=1)
    INITIAL_RATIO: float = key(
        values.FRACTION, "The fraction removed at the first change (cubic).", default=0.0
    )
