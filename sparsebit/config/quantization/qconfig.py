"""A quantization config, and the questions that the library asks it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sparsebit.config.engine.config import Config, Source, load_config
from sparsebit.config.engine.match import Layer, unmatched_rules
from sparsebit.config.engine.problems import Problem, raise_problems
from sparsebit.config.engine.section import key, section
from sparsebit.config.engine.specific import Rule
from sparsebit.config.engine.values import PATTERNS
from sparsebit.config.quantization.conflicts import conflicts, side_problems
from sparsebit.config.quantization.describe import describe_config
from sparsebit.config.quantization.presets import preset_names, preset_text
from sparsebit.config.quantization.resolve import apply_first_last, apply_settings, flatten_side, make_spec
from sparsebit.config.quantization.sections import (
    BACKEND,
    BACKEND_SYNONYMS,
    FIRST_LAST,
    ActivationSection,
    Schedule,
    WeightSection,
)
from sparsebit.config.quantization.tensor_spec import TensorSpec
from sparsebit.targets.schemes import SIDE_WORD, SIDES, Side


class QConfig(Config, init=False):
    """The user's settings, from ``load_qconfig`` or from keyword arguments, which are checked in the same way.

    It cannot be changed; ``load_qconfig(config, ["W.QUANTIZER.BIT=4"])`` makes another one.

    Example:
        >>> eight = {"QSCHEME": "per-tensor-symmetric", "QUANTIZER": {"BIT": 8}}
        >>> config = QConfig(W=eight | {"SPECIFIC": {"fc": {"QUANTIZER.BIT": 4}}}, A=eight)
        >>> config.W.QUANTIZER.BIT
        8
        >>> print(config.spec_for("W", names=["fc"], op="linear"))
        int4 per-tensor-symmetric, uniform, minmax
    """

    NAME, TITLE, PAGE = "qconfig", "Sparsebit quantization config", "configure"
    LEAST, EXAMPLE = "W and A with QSCHEME and QUANTIZER.BIT", "W.QUANTIZER.BIT=4"
    SYNONYMS = BACKEND_SYNONYMS
    elsewhere: ClassVar[Mapping[str, str]] = {
        "SPARSER": "this is a pruning config, for sparsebit.prune or SparseModel"
    }
    preset_names, preset_text = staticmethod(preset_names), staticmethod(preset_text)

    BACKEND: str = key(BACKEND, "The runtime that will execute the result.", default="virtual")
    SKIP_TRACE_MODULES: tuple[str, ...] = key(
        PATTERNS, "Modules, by dotted name or pattern, that are not traced and stay in float.", default=()
    )
    FIRST_LAST: int | str | None = key(
        FIRST_LAST,
        "Bits of the first and last layer with a weight, or float; null for the same as all layers.",
        default=None,
    )
    SCHEDULE: Schedule = section(Schedule, "Changes to the graph before quantization.")
    W: WeightSection = section(WeightSection, "Weights.")
    A: ActivationSection = section(ActivationSection, "Activations.")

    def conflicts(self) -> Iterator[Problem]:
        """Settings that cannot be used together."""
        for side in SIDES:
            yield from side_problems(
                side,
                getattr(self, side),
                backend=self.BACKEND,
                bn_tuning=self.SCHEDULE.BN_TUNING,
                first_last=self.FIRST_LAST,
            )

    @staticmethod
    def before_override(section: dict[str, Any], name: str, value: str) -> None:
        """BIT and DTYPE together name the number format: an override of one replaces both."""
        if name == "BIT":
            section.pop("DTYPE", None)
        elif name == "DTYPE" and value.strip().lower() != "int":
            section.pop("BIT", None)

    def spec_for(
        self, side: Side, *, names: Sequence[str], op: str | None, first_or_last: bool = False
    ) -> TensorSpec:
        """The settings for one tensor of one layer.

        Args:
            side: "W" for the weight, "A" for an activation.
            names: Every name of the layer a pattern may use: dotted module name, flat graph name.
            op: The canonical operator, for patterns such as ``op:conv2d``.
            first_or_last: Whether it is the first or the last layer with a weight, to which FIRST_LAST applies.
        """
        if side not in SIDE_WORD:
            raise ValueError(f"side: expected 'W' or 'A', got {side!r}")
        flat = flatten_side(getattr(self, side))
        if first_or_last and self.FIRST_LAST is not None:
            flat = apply_first_last(flat, self.FIRST_LAST)
        matching = [rule for rule in self.rules(side) if rule.matches(names, op)]
        for rule in matching:
            flat = apply_settings(flat, dict(rule.settings))
        wrong = conflicts(flat, side, backend=self.BACKEND, bn_tuning=self.SCHEDULE.BN_TUNING)
        rules = ", ".join(repr(rule.pattern) for rule in matching) or "no rule"
        path = f"{side} of layer {names[0] if names else op!r}"
        raise_problems(
            self.source,
            (replace(one, path=path, message=f"{one.path} after {rules}", keys=frozenset()) for one in wrong),
        )
        return make_spec(flat, side)

    def rules(self, side: Side) -> tuple[Rule, ...]:
        """The SPECIFIC rules of one side, in the order they apply."""
        found: tuple[Rule, ...] = getattr(self, side).SPECIFIC
        return found

    def require_matched(self, layers: Iterable[Layer]) -> None:
        """Raise one ``ConfigError`` that names every SPECIFIC pattern that matches none of the model's layers."""
        known = tuple(layers)
        problems = [p for side in SIDES for p in unmatched_rules(f"{side}.SPECIFIC", self.rules(side), known)]
        raise_problems(self.source, problems)

    def describe(self) -> str:
        """All settings, on one screen."""
        return describe_config(self, self.source)


def load_qconfig(source: Source | QConfig, overrides: Sequence[str] = ()) -> QConfig:
    """Read a config and check it completely.

    Args:
        source: A YAML file, the name of a preset, a mapping, or another config. A text that names a preset means the
            preset; pass a ``Path`` for a file of that name.
        overrides: Settings that replace those of ``source``, each as ``"W.QUANTIZER.BIT=4"``. Later ones win.

    Example:
        >>> config = load_qconfig("w4a8", ["W.OBSERVER.TYPE=minmax"])
        >>> config.W.OBSERVER.TYPE, config.W.QUANTIZER.BIT
        ('minmax', 4)
        >>> load_qconfig("w4a8", ["W.QUANTIZER.BITT=4"])
        Traceback (most recent call last):
        ...
        sparsebit.config.engine.problems.ConfigProblems: override 'W.QUANTIZER.BITT=4': W.QUANTIZER.BITT: ...
    """
    return load_config(QConfig, source, overrides)
