"""Every key of a qconfig: its type, its default, and one line on what it means.

The names and defaults are those of the first Sparsebit, so that files written for it still work. It had no FIRST_LAST,
GROUP_SIZE, DTYPE and OPTIONS, no groups and no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator
from pydantic_core import PydanticCustomError

from sparsebit.config.engine import values
from sparsebit.config.engine.specific import Rule, rules_field
from sparsebit.config.quantization.recovery import Recovery
from sparsebit.config.quantization.tensor_spec import Options


class Section(BaseModel):
    """A group of keys. Nothing can be changed once it is made, and no unknown key goes in."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, data: Any) -> Any:
        """A key without a value keeps its default, and a section that must be there may be written by its keys."""
        if not isinstance(data, Mapping):
            return data
        required: dict[str, object] = {
            name: {}
            for name, field in cls.model_fields.items()
            if field.is_required()
            and isinstance(field.annotation, type)
            and issubclass(field.annotation, Section)
        }
        return {**required, **{key: value for key, value in data.items() if value is not None}}


def _section(kind: type[Section], description: str) -> Any:
    """A field that holds a section, which may be left out."""
    return Field(default_factory=kind, description=description)


class Schedule(Section):
    """What is done to the graph before it is quantized."""

    FUSE_BN: values.Flag = Field(
        False, description="Fold batch norm into the convolution or linear before it."
    )
    BN_TUNING: values.Flag = Field(
        False,
        description="Keep batch norm, so that batchnorm_tuning() can re-estimate it. Goes before FUSE_BN.",
    )
    DISABLE_UNNECESSARY_QUANT: values.Flag = Field(
        True, description="Leave out quantizers between operators that the backend runs as one."
    )
    RECOVERY: Recovery = Field(
        (), description="Algorithms that win accuracy back, in order: names, or {name: {option: value}}."
    )


class PactSection(Section):
    """Settings of the pact quantizer."""

    ALPHA_VALUE: values.Positive = Field(10.0, description="The clipping value that training starts from.")


class QuantizerSection(Section):
    """How a tensor is quantized."""

    TYPE: values.QuantizerName = Field("uniform", description="Which quantizer, in any capitals.")
    DISABLE: values.Flag = Field(False, description="Leave this side in float.")
    BIT: values.Bits = Field(
        description="Bits of a code; 0 leaves this side in float. Also fp8_e4m3, fp8_e5m2."
    )
    DTYPE: values.DType = Field("int", description="Integers, or one of the 8-bit floats.")
    OPTIONS: values.PlugInOptions = Field(
        default_factory=Options, description="Settings of a quantizer that have no key of their own."
    )

    @model_validator(mode="before")
    @classmethod
    def _split_bit_and_dtype(cls, data: Any) -> Any:
        """``BIT: fp8_e4m3`` is 8 bits of that type, and a type of fp8 needs no BIT."""
        if not isinstance(data, Mapping):
            return data
        bit, dtype = data.get("BIT"), data.get("DTYPE")
        named = bit.strip().lower().replace("-", "_") if isinstance(bit, str) else None
        kind = dtype.strip().lower().replace("-", "_") if isinstance(dtype, str) else None
        if named in values.FP8:
            if kind is not None and kind != named:
                told = {"expected": "BIT and DTYPE to agree", "hint": f"BIT says {named}, DTYPE says {dtype}"}
                raise PydanticCustomError("expected", "expected {expected}", told)
            return {**data, "BIT": 8, "DTYPE": named}
        if kind in values.FP8:
            bits = 8 if bit is None else values.parse_whole(bit)
            if bits not in (0, 8):
                told = {"expected": f"BIT: 8 or none with DTYPE: {kind}", "hint": f"{kind} has 8 bits"}
                raise PydanticCustomError("expected", "expected {expected}", told)
            return {**data, "BIT": bits}
        return data


class ActivationQuantizerSection(QuantizerSection):
    """How an activation is quantized."""

    PACT: PactSection = _section(PactSection, "Settings of the pact quantizer.")


class PercentileSection(Section):
    """Settings of the percentile observer."""

    ALPHA: values.Fraction = Field(
        0.001, description="The part of the values that is clipped on each side of zero."
    )


class AciqSection(Section):
    """Settings of the aciq observer."""

    DISTRIBUTION: values.Distribution = Field("gaus", description="What the values are taken to follow.")


class MovingAverageSection(Section):
    """Settings of the moving_average observer."""

    EMA_RATIO: values.Fraction = Field(0.9, description="The weight of what was seen before.")


class ObserverSection(Section):
    """How the range of a tensor is found."""

    TYPE: values.ObserverName = Field("minmax", description="Which observer, in any capitals.")
    PERCENTILE: PercentileSection = _section(PercentileSection, "Settings of the percentile observer.")
    ACIQ: AciqSection = _section(AciqSection, "Settings of the aciq observer.")
    OPTIONS: values.PlugInOptions = Field(
        default_factory=Options, description="Settings of an observer that have no key of their own."
    )


class ActivationObserverSection(ObserverSection):
    """How the range of an activation is found."""

    MOVING_AVERAGE: MovingAverageSection = _section(
        MovingAverageSection, "Settings of the moving_average observer."
    )
    LAYOUT: values.TensorLayout = Field(
        "NCHW", description="Channels on axis 1 (NCHW) or on the last axis (NLC)."
    )


class QAddSection(Section):
    """Quantization of additions."""

    ENABLE_QUANT: values.Wish = Field(
        None, description="Quantize both inputs of every addition, or of none; null as the backend needs it."
    )


class WeightSettings(Section):
    """What can be said about weights: for all of them, or for some layers under SPECIFIC."""

    QSCHEME: values.WeightScheme = Field(
        description="What shares a scale, and whether zero points are allowed."
    )
    GROUP_SIZE: values.GroupSize = Field(
        128, description="Weights along the input channels that share a scale, in per-group schemes."
    )
    QUANTIZER: QuantizerSection = Field(description="How weights are quantized.")
    OBSERVER: ObserverSection = _section(ObserverSection, "How the range of a weight is found.")


class ActivationSettings(Section):
    """What can be said about activations: for all of them, or for some layers under SPECIFIC."""

    QSCHEME: values.ActivationScheme = Field(
        description="What shares a scale, and whether zero points are allowed."
    )
    QUANTIZER: ActivationQuantizerSection = Field(description="How activations are quantized.")
    OBSERVER: ActivationObserverSection = _section(
        ActivationObserverSection, "How the range of an activation is found."
    )


EXAMPLE: Mapping[str, JsonValue] = {"QSCHEME": "per-tensor-symmetric", "QUANTIZER": {"BIT": 8}}
_SPECIFIC = "Settings for some layers by pattern: dotted name, flat name, or op:<operator>. Later rules win."


class WeightSection(WeightSettings):
    """Everything about weights."""

    SPECIFIC: Annotated[tuple[Rule, ...], rules_field(WeightSettings, EXAMPLE)] = Field(
        (), description=_SPECIFIC
    )


class ActivationSection(ActivationSettings):
    """Everything about activations."""

    QADD: QAddSection = _section(QAddSection, "Quantization of additions.")
    SPECIFIC: Annotated[tuple[Rule, ...], rules_field(ActivationSettings, EXAMPLE)] = Field(
        (), description=_SPECIFIC
    )


class QConfigKeys(Section):
    """The keys of a whole config, each read but not yet compared with the others."""

    DEVICE: values.Device = Field(
        "auto", description="Where to calibrate; auto takes a GPU when there is one."
    )
    BACKEND: values.Backend = Field("virtual", description="The runtime that will execute the result.")
    SKIP_TRACE_MODULES: values.Patterns = Field(
        (), description="Modules, by dotted name or pattern, that are kept whole and in float."
    )
    FIRST_LAST: values.FirstLast = Field(
        None,
        description="Bits of the first and the last layer with a weight, or float; null as the rest.",
    )
    SCHEDULE: Schedule = _section(Schedule, "What is done to the graph beforehand.")
    W: WeightSection = Field(description="Weights.")
    A: ActivationSection = Field(description="Activations.")
