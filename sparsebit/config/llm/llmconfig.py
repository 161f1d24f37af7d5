"""A config for a language model: every key, and the questions that the library asks it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, get_args

from sparsebit.config.engine.config import Config, Source, load_config
from sparsebit.config.engine.match import Layer, unmatched_patterns, unmatched_rules
from sparsebit.config.engine.problems import Problem, raise_problems
from sparsebit.config.engine.section import Section, key, keys_of, section
from sparsebit.config.engine.specific import Rule, rules
from sparsebit.config.engine.steps import Step
from sparsebit.config.engine.values import (
    NOT_NEGATIVE,
    PATTERNS,
    Read,
    Refused,
    one_of,
    parse_number,
    parse_whole,
    whole,
)
from sparsebit.config.llm.methods import METHOD, METHOD_RULES, PRUNING_NAMES, Moment

Scheme = Literal["full-range", "symmetric", "affine"]
ScaleDtype = Literal["float16", "bfloat16", "float32"]
FLOATS = ("nf4", "fp8_e4m3", "fp8_e5m2")
WIDTHS = (2, 3, 4, 8)
FORMAT_NAMES = ("gguf", "onnxruntime-genai", "openvino", "compressed-tensors", "gptq")


def _parse_bit(value: object) -> int | str:
    if isinstance(value, str) and value.strip().lower() in FLOATS:
        return value.strip().lower()
    found = parse_whole(value)
    if found not in (0, *WIDTHS):
        raise Refused(BIT.expected)
    return int(found or 0)


def _parse_group(value: object) -> int:
    found = parse_whole(value)
    if found is None or found < -1 or 0 < found < 8:
        raise Refused(GROUP_SIZE.expected)
    return max(found, 0)


def _parse_sparsity(value: object) -> float | str:
    """A fraction from 0 up to 1, or "N:M" to keep N of every M."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+)\s*:\s*(\d+)\s*", value)):
        kept, size = int(match[1]), int(match[2])
        if 0 < kept < size <= 64:
            return f"{kept}:{size}"
    found = parse_number(value)
    if found is None or not 0 <= found < 1:
        raise Refused(SPARSITY.expected)
    return found


SPARSITY = Read(
    _parse_sparsity,
    "the fraction of the weights to set to zero, such as 0.5, or N:M such as 2:4 to keep N of every M",
    {"anyOf": [{"type": "number", "minimum": 0, "exclusiveMaximum": 1}, {"type": "string"}]},
)


def _parse_widths(value: object) -> tuple[int, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    found = tuple(sorted({parse_whole(item) or 0 for item in items}))
    if not found or not set(found) <= set(WIDTHS):
        raise Refused(BUDGET_WIDTHS.expected)
    return found


BUDGET_WIDTHS = Read(
    _parse_widths,
    f"a list of widths out of {', '.join(map(str, WIDTHS))}",
    {"type": "array", "items": {"enum": list(WIDTHS)}},
)
_FORMAT = one_of(FORMAT_NAMES, aliases={"genai": "onnxruntime-genai", "ct": "compressed-tensors"})


def _parse_formats(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    try:
        return tuple(dict.fromkeys(str(_FORMAT.parse(item)) for item in items))
    except Refused as refused:
        raise Refused(BUDGET_FORMATS.expected, refused.hint) from None


BUDGET_FORMATS = Read(
    _parse_formats,
    f"a list of formats out of {', '.join(FORMAT_NAMES)}",
    {"anyOf": [{"type": "array", "items": _FORMAT.schema}, _FORMAT.schema]},
)
BIT = Read(
    _parse_bit,
    "2, 3, 4 or 8, nf4, fp8_e4m3 or fp8_e5m2, or 0 to leave it in float",
    {"enum": [0, *WIDTHS, *FLOATS]},
)
GROUP_SIZE = Read(
    _parse_group, "how many input channels share a scale, or 0 for all of them", {"type": "integer"}
)


# Routers, which choose the experts of a token: they are small, and the choice depends on them.
ROUTERS = ("*.router", "*.router.*", "*.gate", "*.gate.wg", "*.shared_expert_gate")


@dataclass(frozen=True)
class MatrixSpec:
    """The quantization and sparsity of one matrix."""

    bit: int | str  # 0 for float, where the weight is only pruned
    scheme: Scheme
    group_size: int | None
    scale_dtype: ScaleDtype
    sparsity: float | str = 0.0  # the fraction that becomes zero, or "N:M" to keep N of every M


class MatrixSettings(Section):
    """Settings of a weight: its width, and how many of its input channels share a scale."""

    BIT: int | str = key(BIT, "Bits per weight, a 4- or 8-bit float type, or 0 for float.", default=4)
    SCHEME: Scheme = key(
        one_of(get_args(Scheme), aliases={"full": "full-range", "asymmetric": "affine"}),
        "full-range: symmetric with a signed scale, all values used; affine: with a zero point.",
        default="full-range",
    )
    GROUP_SIZE: int = key(GROUP_SIZE, "Input channels that share a scale; 0 for all of them.", default=32)
    SCALE_DTYPE: ScaleDtype = key(
        one_of(get_args(ScaleDtype)),
        "The type of the stored scales, to which they are rounded before weights are solved.",
        default="float16",
    )

    SPARSITY: float | str = key(
        SPARSITY, "Fraction of the weights to set to zero, or N:M to keep N of every M.", default=0.0
    )

    def spec(self) -> MatrixSpec | None:
        """The spec; None if the weight is not changed."""
        if not self.BIT and not self.SPARSITY:
            return None
        return MatrixSpec(self.BIT, self.SCHEME, self.GROUP_SIZE or None, self.SCALE_DTYPE, self.SPARSITY)


class WeightSection(MatrixSettings):
    """The weights inside the blocks."""

    SPECIFIC: tuple[Rule, ...] = rules(MatrixSettings)


class HeadSection(MatrixSettings):
    """The embedding and the output layer, which stay in float unless BIT says otherwise."""

    BIT: int | str = key(BIT, "Bits of the embedding and the head; 0 leaves them in float.", default=0)


class CalibrationSection(Section):
    """The part of the text used for calibration, and the type it runs in."""

    SAMPLES: int = key(whole(1), "Number of sequences.", default=64)
    LENGTH: int = key(whole(1), "Tokens per sequence.", default=512)
    SEED: int = key(whole(0), "Seed that chooses where in the text the sequences start.", default=0)
    DTYPE: Literal["float32", "bfloat16"] = key(
        one_of(("float32", "bfloat16")),
        "The type of products while the text runs; bfloat16 is faster on GPUs and processors that support it.",
        default="float32",
    )


class BudgetSection(Section):
    """Bits within a budget: each group of weights gets one of WIDTHS, so that predictions change least."""

    BITS: float = key(
        NOT_NEGATIVE, "Mean bits per weight, including scales and zero points; 0 for no budget.", default=0.0
    )
    BYTES: float = key(
        NOT_NEGATIVE, "Total bytes of the quantized weights in the blocks, instead of BITS.", default=0.0
    )
    WIDTHS: tuple[int, ...] = key(BUDGET_WIDTHS, "Bit widths to choose from.", default=(2, 3, 4, 8))
    FORMATS: tuple[str, ...] = key(
        BUDGET_FORMATS,
        "Formats to export to: only widths that all of them store exactly are chosen, and sizes are counted as in "
        "these files.",
        default=(),
    )
    MEASURE: Literal["kl", "loss"] = key(
        one_of(("kl", "loss")),
        "kl: divergence of the predictions, with the float model in memory; loss: error of the block alone.",
        default="kl",
    )
    SAMPLES: int = key(whole(1), "Sequences of the calibration data to measure with.", default=4)


class LlmConfig(Config, init=False):
    """The user's settings, from ``load_llm_config`` or from keyword arguments, which are checked in the same way.

    Example:
        >>> config = LlmConfig(W={"BIT": 4, "SPECIFIC": {"*.down_proj": {"BIT": 8}}}, METHOD=["gptq", "tune"])
        >>> config.matrix("model.layers.0.mlp.down_proj").bit, config.matrix("model.layers.0.mlp.up_proj").bit
        (8, 4)
    """

    NAME, TITLE, PAGE = "llm config", "Sparsebit language-model config", "language_models"
    LEAST, EXAMPLE = "W with BIT, and METHOD", "W.BIT=3"
    PRESETS = "llm/presets"

    W: WeightSection = section(WeightSection, "The weights inside the blocks.")
    HEAD: HeadSection = section(HeadSection, "The embedding and the output layer.")
    BUDGET: BudgetSection = section(BudgetSection, "Bits for each layer under a budget.")
    METHOD: tuple[Step, ...] = key(
        METHOD,
        "How weights are rounded: a method, or a list of steps of which exactly one solves the weights.",
        default=METHOD.parse("gptq"),
    )
    IGNORE: tuple[str, ...] = key(
        PATTERNS,
        "Layers, by dotted name or pattern, that stay in float; routers of experts by default.",
        default=ROUTERS,
    )
    CALIBRATION: CalibrationSection = section(
        CalibrationSection, "The part of the text used for calibration, and the type it runs in."
    )

    def conflicts(self) -> Iterator[Problem]:
        """Settings that cannot be used together."""
        if self.BUDGET.BITS and self.BUDGET.BYTES:
            yield Problem(
                path="BUDGET.BYTES", expected="BITS or BYTES", got="both", hint="leave one of them out"
            )
        pruned = [
            self.W.SPARSITY,
            self.HEAD.SPARSITY,
            *(dict(r.settings).get("SPARSITY") for r in self.W.SPECIFIC),
        ]
        pruning = [step for step in self.METHOD if {step.name, step.spelled.lower()} & PRUNING_NAMES]
        if pruning and not any(pruned):
            name = pruning[0].spelled or pruning[0].name
            yield Problem(
                path="METHOD",
                expected=f"W.SPARSITY with {name}, such as 0.5 or 2:4",
                got="no SPARSITY",
                hint="set it, or quantize without pruning: METHOD: gptq",
            )
        moments = [METHOD_RULES[step.name].moment for step in self.METHOD]
        solving = [name for name, rule in METHOD_RULES.items() if rule.moment == "solve"]
        if moments.count("solve") != 1:
            yield Problem(
                path="METHOD",
                expected=f"exactly one of {', '.join(solving)}",
                got=", ".join(step.name for step in self.METHOD) or "no step",
            )
        elif moments != sorted(moments, key=get_args(Moment).index):
            place = zip((step.name for step in self.METHOD), moments, strict=True)
            yield Problem(
                path="METHOD",
                expected="steps in the order in which they run",
                got=", ".join(f"{name} ({moment})" for name, moment in place),
                hint="first the steps before solving, then the one that solves, then the steps after it",
            )

    def matrix(self, name: str) -> MatrixSpec | None:
        """The settings for the layer of this name; None if it stays in float."""
        if self.ignores(name):
            return None
        settings: dict[str, Any] = {one: getattr(self.W, one) for one in keys_of(MatrixSettings)}
        for rule in self.W.SPECIFIC:
            if rule.matches([name], None):
                settings |= dict(rule.settings)
        return MatrixSettings(**settings).spec()

    def bit_by_rule(self, name: str) -> int | str | None:
        """The BIT that SPECIFIC gives the layer of this name; None if no rule does."""
        given = [dict(rule.settings).get("BIT") for rule in self.W.SPECIFIC if rule.matches([name], None)]
        return next((bit for bit in reversed(given) if bit is not None), None)

    def ignores(self, name: str) -> str | None:
        """The pattern of IGNORE that a layer matches."""
        return next((pattern for pattern in self.IGNORE if fnmatchcase(name, pattern)), None)

    def require_matched(self, names: Iterable[str]) -> None:
        """Raise one ``ConfigError`` that names every rule that matches no layer."""
        layers = list(names)
        rules = unmatched_rules("W.SPECIFIC", self.W.SPECIFIC, [Layer((name,)) for name in layers])
        asked = [pattern for pattern in self.IGNORE if pattern not in ROUTERS]  # dense models have no routers
        raise_problems(self.source, [*rules, *unmatched_patterns("IGNORE", asked, layers)])


def load_llm_config(source: Source | LlmConfig, overrides: Sequence[str] = ()) -> LlmConfig:
    """Read a config for a language model and check it completely.

    Example:
        >>> load_llm_config("w4_g32").W.GROUP_SIZE
        32
    """
    return load_config(LlmConfig, source, overrides)
