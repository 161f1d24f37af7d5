"""Every key of a quantization config: how it is read, its default, and one line on what it means.

The names and defaults are those of the first Sparsebit, so that files written for it still work. It had no FIRST_LAST,
GROUP_SIZE, DTYPE and OPTIONS, no groups and no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sparsebit.config.engine.options import Options
from sparsebit.config.engine.problems import nearest
from sparsebit.config.engine.section import Section, key, section
from sparsebit.config.engine.specific import Rule, rules
from sparsebit.config.engine.steps import Step
from sparsebit.config.engine.values import (
    FLAG,
    FRACTION,
    OPTIONS,
    POSITIVE,
    Read,
    Refused,
    one_of,
    parse_whole,
    whole,
)
from sparsebit.config.quantization.plugins import (
    OBSERVER_RULES,
    QUANTIZER_RULES,
    ACIQSettings,
    MovingAverageSettings,
    PactSettings,
    PercentileSettings,
)
from sparsebit.config.quantization.recovery import RECOVERY
from sparsebit.config.quantization.tensor_spec import HIGHEST_BITS, LOWEST_BITS, Layout
from sparsebit.targets import TARGETS
from sparsebit.targets.schemes import SCHEMES, SCHEMES_OF, SIDE_WORD, NumberFormat, Scheme, Side

FP8: tuple[NumberFormat, ...] = ("fp8_e4m3", "fp8_e5m2")
BACKEND_SYNONYMS = {"ort": "onnxruntime", "onnx": "onnxruntime", "ov": "openvino", "trt": "tensorrt"}


def _width(value: object) -> int | None:
    """A number of bits, or 0; None for anything else."""
    bits = parse_whole(value)
    return bits if bits is not None and (bits == 0 or LOWEST_BITS <= bits <= HIGHEST_BITS) else None


def _parse_bits(value: object) -> int:
    """A number of bits, or 0 for float. The section handles the names of fp8, because they set DTYPE."""
    bits = _width(value)
    if bits is None:
        near = nearest(value, FP8) if isinstance(value, str) else None
        raise Refused(BITS.expected, f"did you mean {near!r}?" if near else "")
    return bits


def _parse_first_last(value: object) -> int | str:
    if isinstance(value, str) and value.strip().lower() in ("float", *FP8):
        return value.strip().lower()
    bits = _width(value)
    if bits is None:
        raise Refused(FIRST_LAST.expected)
    return bits or "float"


def _parse_backend(value: object) -> object:
    """The name of a target, as long as it is registered."""
    hints = {word: f"did you mean {name!r}?" for word, name in BACKEND_SYNONYMS.items()}
    return one_of(tuple(TARGETS), hints=hints).parse(value)


def _scheme(side: Side, other: Side) -> Read:
    hints: dict[str, str] = {
        one: f"{one} is for {SIDE_WORD[other]} only" for one in SCHEMES if one not in SCHEMES_OF[side]
    }
    return one_of(SCHEMES_OF[side], hints=hints)


_WIDTHS = f"an integer from {LOWEST_BITS} to {HIGHEST_BITS}"
_WIDTHS_SCHEMA = {"type": "integer", "minimum": LOWEST_BITS, "maximum": HIGHEST_BITS}
BITS = Read(
    _parse_bits,
    f"{_WIDTHS}, 0 for float, {' or '.join(FP8)}",
    {"anyOf": [{"enum": [0, *FP8]}, _WIDTHS_SCHEMA]},
)
FIRST_LAST = Read(
    _parse_first_last,
    f"{_WIDTHS}, {', '.join(FP8)}, or float",
    {"anyOf": [{"enum": ["float", 0, *FP8]}, _WIDTHS_SCHEMA]},
)
BACKEND = Read(_parse_backend, "the name of a target", one_of(tuple(TARGETS)).schema)
DISTRIBUTION = one_of(("gaus", "laplace"), aliases={"gauss": "gaus", "gaussian": "gaus"})

_ONLY_ACTIVATIONS, _ONLY_WEIGHTS = "only activations have it", "only weights have it"
_QSCHEME = "What shares a scale, and whether zero points are allowed."


class Schedule(Section):
    """Changes to the graph before it is quantized."""

    FUSE_BN: bool = key(FLAG, "Fold batch norm into the convolution or linear before it.", default=False)
    BN_TUNING: bool = key(FLAG, "Keep batch norm for batchnorm_tuning(). Overrides FUSE_BN.", default=False)
    DISABLE_UNNECESSARY_QUANT: bool = key(
        FLAG, "Leave out quantizers between operators that the backend runs as one.", default=True
    )
    RECOVERY: tuple[Step, ...] = key(
        RECOVERY,
        "Algorithms that recover accuracy, in order: names, or {name: {option: value}}.",
        default=(),
    )


class PactSection(Section):
    """Settings of the pact quantizer."""

    ALPHA_VALUE: float = key(
        POSITIVE, "The clipping value that training starts from.", default=PactSettings.alpha_value
    )


class QuantizerSection(Section):
    """How a tensor is quantized."""

    elsewhere: ClassVar[Mapping[str, str]] = {"PACT": _ONLY_ACTIVATIONS}
    needs_one_of = ("BIT", "DTYPE")

    TYPE: str = key(
        QUANTIZER_RULES.reader(), "Name of the quantizer; case does not matter.", default="uniform"
    )
    DISABLE: bool = key(FLAG, "Keep weights or activations in float.", default=False)
    BIT: int = key(
        BITS, "Bits per value, fp8_e4m3 or fp8_e5m2; 0 keeps weights or activations in float.", required_as=8
    )
    DTYPE: NumberFormat = key(one_of(("int", *FP8)), "Integers, or one of the 8-bit floats.", default="int")
    OPTIONS: Options = key(OPTIONS, "Settings of a quantizer without a dedicated key.", default=Options())

    @classmethod
    def prepare(cls, data: Mapping[Any, Any]) -> Mapping[Any, Any]:
        """``BIT: fp8_e4m3`` is 8 bits of that type, and a type of fp8 needs no BIT."""
        bit, dtype = data.get("BIT"), data.get("DTYPE")
        named = bit.strip().lower().replace("-", "_") if isinstance(bit, str) else None
        kind = dtype.strip().lower().replace("-", "_") if isinstance(dtype, str) else None
        if named in FP8:
            if kind is not None and kind != named:
                raise Refused("BIT and DTYPE to agree", f"BIT says {named}, DTYPE says {dtype}")
            return {**data, "BIT": 8, "DTYPE": named}
        if kind in FP8:
            bits = 8 if bit is None else parse_whole(bit)
            if bits not in (0, 8):
                raise Refused(f"BIT: 8 or none with DTYPE: {kind}", f"{kind} has 8 bits")
            return {**data, "BIT": bits}
        return data


class ActivationQuantizerSection(QuantizerSection):
    """How an activation is quantized."""

    PACT: PactSection = section(PactSection, "Settings of the pact quantizer.")


class PercentileSection(Section):
    """Settings of the percentile observer."""

    ALPHA: float = key(
        FRACTION,
        "The fraction of the values clipped on each side of zero.",
        default=PercentileSettings.alpha,
    )


class AciqSection(Section):
    """Settings of the aciq observer."""

    DISTRIBUTION: str = key(
        DISTRIBUTION,
        "The distribution that the values are assumed to follow.",
        default=ACIQSettings.distribution,
    )


class MovingAverageSection(Section):
    """Settings of the moving_average observer."""

    EMA_RATIO: float = key(
        FRACTION, "The weight of earlier batches.", default=MovingAverageSettings.ema_ratio
    )


class ObserverSection(Section):
    """How the range of a tensor is found."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "LAYOUT": _ONLY_ACTIVATIONS,
        "MOVING_AVERAGE": _ONLY_ACTIVATIONS,
    }

    TYPE: str = key(OBSERVER_RULES.reader(), "Name of the observer; case does not matter.", default="minmax")
    PERCENTILE: PercentileSection = section(PercentileSection, "Settings of the percentile observer.")
    ACIQ: AciqSection = section(AciqSection, "Settings of the aciq observer.")
    OPTIONS: Options = key(OPTIONS, "Settings of an observer without a dedicated key.", default=Options())


class ActivationObserverSection(ObserverSection):
    """How the range of an activation is found."""

    MOVING_AVERAGE: MovingAverageSection = section(
        MovingAverageSection, "Settings of the moving_average observer."
    )
    LAYOUT: Layout = key(
        one_of(("NCHW", "NLC")), "Channels on axis 1 (NCHW) or on the last axis (NLC).", default="NCHW"
    )


class QAddSection(Section):
    """Quantization of additions."""

    ENABLE_QUANT: bool | None = key(
        FLAG,
        "Quantize both inputs of every addition (true) or of none (false); null lets the backend decide.",
        default=None,
    )


class WeightSettings(Section):
    """Settings of weights: for all of them, or for some layers under SPECIFIC."""

    elsewhere: ClassVar[Mapping[str, str]] = {"QADD": _ONLY_ACTIVATIONS}

    QSCHEME: Scheme = key(_scheme("W", "A"), _QSCHEME, required_as="per-tensor-symmetric")
    GROUP_SIZE: int = key(
        whole(2), "Weights along the input channels that share a scale, in per-group schemes.", default=128
    )
    QUANTIZER: QuantizerSection = section(QuantizerSection, "How weights are quantized.")
    OBSERVER: ObserverSection = section(ObserverSection, "How the range of a weight is found.")


class ActivationSettings(Section):
    """Settings of activations: for all of them, or for some layers under SPECIFIC."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "GROUP_SIZE": _ONLY_WEIGHTS,
        "QADD": "it applies to the complete model: set A.QADD.ENABLE_QUANT",
    }

    QSCHEME: Scheme = key(_scheme("A", "W"), _QSCHEME, required_as="per-tensor-symmetric")
    QUANTIZER: ActivationQuantizerSection = section(
        ActivationQuantizerSection, "How activations are quantized."
    )
    OBSERVER: ActivationObserverSection = section(
        ActivationObserverSection, "How the range of an activation is found."
    )


class WeightSection(WeightSettings):
    """Everything about weights."""

    SPECIFIC: tuple[Rule, ...] = rules(WeightSettings)


class ActivationSection(ActivationSettings):
    """Everything about activations."""

    QADD: QAddSection = section(QAddSection, "Quantization of additions.")
    SPECIFIC: tuple[Rule, ...] = rules(ActivationSettings)
