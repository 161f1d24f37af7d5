"""A config in words, on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sparsebit.config.engine.specific import Rule
from sparsebit.config.quantization.resolve import flatten_side, make_spec
from sparsebit.config.quantization.sections import ActivationSection, WeightSection
from sparsebit.targets.schemes import SIDE_WORD, SIDES

if TYPE_CHECKING:
    from sparsebit.config.quantization.qconfig import QConfig

MOST_RULES = 12  # of one side; the rest are counted


def describe_config(config: QConfig, source: str) -> str:
    """One line per setting; settings that are off or not set are omitted."""
    lines = [f"{source}: for {config.BACKEND}, on {config.DEVICE}"]
    for side in SIDES:
        section: WeightSection | ActivationSection = getattr(config, side)
        layout = f", {section.OBSERVER.LAYOUT}" if isinstance(section, ActivationSection) else ""
        spec = make_spec(flatten_side(section), side)
        lines.append(f"  {SIDE_WORD[side]:<12} {spec}{layout if spec.enabled else ''}")
    lines += [f"  {label:<12} {text}" for label, text in _details(config)]
    for side in SIDES:
        lines += [f"  {line}" for line in _rule_lines(side, getattr(config, side).SPECIFIC)]
    return "\n".join(lines)


def _details(config: QConfig) -> Iterator[tuple[str, str]]:
    if config.FIRST_LAST is not None:
        bits = f"{config.FIRST_LAST} bits" if isinstance(config.FIRST_LAST, int) else config.FIRST_LAST
        yield "first, last", str(bits)
    steps = []
    if config.SCHEDULE.BN_TUNING:
        steps.append("keep batch norm for tuning")
    elif config.SCHEDULE.FUSE_BN:
        steps.append("fold batch norm")
    if config.SCHEDULE.DISABLE_UNNECESSARY_QUANT:
        steps.append("no quantizers inside fused operators")
    if config.A.QADD.ENABLE_QUANT:
        steps.append("quantize the inputs of additions")
    if steps:
        yield "schedule", ", ".join(steps)
    if config.SKIP_TRACE_MODULES:
        yield "not traced", ", ".join(config.SKIP_TRACE_MODULES)


def _rule_lines(side: str, rules: tuple[Rule, ...]) -> Iterator[str]:
    for rule in rules[:MOST_RULES]:
        settings = ", ".join(f"{key}={value}" for key, value in rule.settings)
        yield f"{side} {rule.pattern}: {settings or 'as the rest'}"
    if len(rules) > MOST_RULES:
        yield f"{side} and {len(rules) - MOST_RULES} more rules"
