"""Every key of a pruning config: its type, its default, and one line on what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, JsonValue

from sparsebit.config.engine.specific import Rule, rules_field
from sparsebit.config.engine.values import Device, Flag, Patterns, PlugInOptions
from sparsebit.config.pruning import values
from sparsebit.config.quantization.sections import Section
from sparsebit.config.quantization.tensor_spec import Options


class LayerSettings(Section):
    """What can be said about pruning: for the whole model, or for some layers under SPECIFIC."""

    STRATEGY: values.SparserName = Field(description="The criterion that scores what may go.")
    RATIO: values.OptionalRatio = Field(None, description="The part that goes; 0 leaves all of it.")
    ROUND_TO: values.Multiple = Field(
        8, description="Widths that stay are multiples of this; 1 turns rounding off."
    )
    NM: values.HowMany = Field((2, 4), description="Of every M neighbours along the inputs, N stay.")
    BLOCK: values.BlockShape = Field((4, 4), description="Rows and columns of a block that stays or goes.")


def _optional(kind: type[Section], description: str) -> Any:
    """A field that holds a section, which may be left out."""
    return Field(default_factory=kind, description=description)


EXAMPLE: Mapping[str, JsonValue] = {"STRATEGY": "l1norm"}


class SparserSection(LayerSettings):
    """What is pruned, by which criterion, and how much."""

    TYPE: values.TypeOfSparsity = Field(
        description="Whole channels, single weights, N of every M, or blocks."
    )
    SCOPE: values.ScopeWord = Field(
        "layer", description="RATIO counts in every layer, or over all of them together."
    )
    TARGET: values.TargetWord = Field(
        "units", description="What RATIO is a part of: units, parameters, MACs or measured latency."
    )
    AGGREGATE: values.AggregateWord = Field(
        "auto", description="How the scores of coupled layers become one; auto is what suits the criterion."
    )
    NORMALIZE: values.NormalizeWord = Field(
        "auto", description="How the scores of different layers are made comparable in global scope."
    )
    MAX_RATIO: values.LargestRatio = Field(
        0.9, description="The most that any one layer may lose when RATIO counts over all of them."
    )
    CLASSIFIER: Flag = Field(
        False, description="Prune single weights of the layers that make the outputs too."
    )
    OPTIONS: PlugInOptions = Field(default_factory=Options, description="Settings of the criterion.")
    SPECIFIC: Annotated[tuple[Rule, ...], rules_field(LayerSettings, EXAMPLE)] = Field(
        (),
        description="Settings for some layers by pattern: dotted name, flat name, or op:<operator>. Later rules win.",
    )


class ScheduleSection(Section):
    """When it is pruned, in calls of ``step``."""

    TYPE: values.ScheduleWord = Field("one-shot", description="All at once, in equal steps, or cubic (AGP).")
    START: values.StepCount = Field(0, description="The step of the first change.")
    EVERY: values.Multiple = Field(1, description="Steps from one change to the next.")
    TIMES: values.Multiple = Field(1, description="Changes until RATIO is reached.")
    INITIAL_RATIO: values.Ratio = Field(0.0, description="The part that is gone at the first change (cubic).")


class SConfigKeys(Section):
    """The keys of a whole pruning config, each read but not yet compared with the others."""

    DEVICE: Device = Field("auto", description="Where to work; auto takes a GPU when there is one.")
    IGNORE: Patterns = Field((), description="Layers, by dotted name or pattern, whose outputs stay whole.")
    SKIP_TRACE_MODULES: Patterns = Field(
        (), description="Modules, by dotted name or pattern, that are kept whole."
    )
    SPARSER: SparserSection = Field(description="What is pruned, by which criterion, and how much.")
    SCHEDULE: ScheduleSection = _optional(ScheduleSection, "When, in calls of step().")
