"""A whole, valid config, and what the rest of the library asks of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import PrivateAttr

from sparsebit.config.engine.match import Layer, unmatched_patterns, unmatched_rules
from sparsebit.config.engine.problems import Problem, raise_problems
from sparsebit.config.engine.specific import Rule
from sparsebit.config.engine.write import write_section
from sparsebit.config.engine.yaml_file import write_yaml
from sparsebit.config.quantization.check import check
from sparsebit.config.quantization.describe import describe_config
from sparsebit.config.quantization.recovery import write_recovery
from sparsebit.config.quantization.resolve import apply_first_last, apply_settings, flatten_side, make_spec
from sparsebit.config.quantization.rules import clashes
from sparsebit.config.quantization.sections import QConfigKeys
from sparsebit.config.quantization.tensor_spec import SIDE_WORD, Side, TensorSpec


class QConfig(QConfigKeys):
    """What the user asked for. Made by ``load_qconfig``, or from keyword arguments that are checked the same way.

    It cannot be changed; ``load_qconfig(config, ["W.QUANTIZER.BIT=4"])`` makes another one.

    Example:
        >>> eight = {"QSCHEME": "per-tensor-symmetric", "QUANTIZER": {"BIT": 8}}
        >>> config = QConfig(W=eight | {"SPECIFIC": {"fc": {"QUANTIZER.BIT": 4}}}, A=eight)
        >>> config.W.QUANTIZER.BIT
        8
        >>> print(config.spec_for("W", names=["fc"], op="linear"))
        int4 per-tensor-symmetric, uniform, minmax
    """

    _source: str = PrivateAttr("qconfig")

    def __init__(self, **data: Any) -> None:
        check(data, "qconfig")
        super().__init__(**data)

    @property
    def source(self) -> str:
        """Where it was read from, for messages; plays no part in equality."""
        return self._source

    def spec_for(
        self, side: Side, *, names: Sequence[str], op: str | None, first_or_last: bool = False
    ) -> TensorSpec:
        """What is asked for one tensor of one layer.

        Args:
            side: "W" for the weight, "A" for an activation.
            names: Every name of the layer a pattern may use: dotted module name, flat graph name.
            op: The canonical operator, for patterns such as ``op:conv2d``.
            first_or_last: Whether it is the first or the last layer with a weight, which FIRST_LAST is about.
        """
        if side not in SIDE_WORD:
            raise ValueError(f"side: expected 'W' or 'A', got {side!r}")
        flat = flatten_side(getattr(self, side))
        if first_or_last and self.FIRST_LAST is not None:
            flat = apply_first_last(flat, self.FIRST_LAST)
        matching = [rule for rule in self.rules(side) if rule.matches(names, op)]
        for rule in matching:
            flat = apply_settings(flat, dict(rule.settings))
        wrong = clashes(flat, side, backend=self.BACKEND, bn_tuning=self.SCHEDULE.BN_TUNING)
        layer = names[0] if names else op
        rules = ", ".join(repr(rule.pattern) for rule in matching) or "no rule"
        raise_problems(
            self.source,
            (
                Problem(
                    path=f"{side} of layer {layer!r}",
                    message=f"{clash.key} after {rules}",
                    expected=clash.expected,
                    got=clash.got,
                    hint=clash.because,
                )
                for clash in wrong
            ),
        )
        return make_spec(flat, side)

    def rules(self, side: Side) -> tuple[Rule, ...]:
        """The SPECIFIC rules of one side, in the order they apply."""
        found: tuple[Rule, ...] = getattr(self, side).SPECIFIC
        return found

    def unmatched(self, layers: Iterable[Layer], modules: Iterable[str] | None = None) -> tuple[Problem, ...]:
        """Patterns that match nothing, each with the nearest name.

        Args:
            layers: Every layer of the model that a SPECIFIC rule may mean.
            modules: Dotted names of all modules, for SKIP_TRACE_MODULES; left out, those are not looked at.
        """
        known = tuple(layers)
        found = [
            *unmatched_rules("W.SPECIFIC", self.W.SPECIFIC, known),
            *unmatched_rules("A.SPECIFIC", self.A.SPECIFIC, known),
        ]
        if modules is not None:
            found += unmatched_patterns("SKIP_TRACE_MODULES", self.SKIP_TRACE_MODULES, modules)
        return tuple(found)

    def require_matched(self, layers: Iterable[Layer], modules: Iterable[str] | None = None) -> None:
        """Raise one ``ConfigError`` that names every pattern that matches nothing."""
        raise_problems(self.source, self.unmatched(layers, modules))

    def to_dict(self) -> dict[str, Any]:
        """Plain dicts, lists and scalars that ``load_qconfig`` turns into an equal config."""
        return write_section(self, {"RECOVERY": write_recovery})

    def to_yaml(self) -> str:
        """The text of a file that loads as an equal config."""
        return write_yaml(self.to_dict())

    def describe(self) -> str:
        """What it asks for, on one screen."""
        return describe_config(self, self.source)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QConfig) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[object, ...]:
        return tuple(getattr(self, name) for name in QConfigKeys.model_fields)
