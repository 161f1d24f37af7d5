"""What a runtime can execute on integers, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

When = Literal["always", "joins", "if_asked"]


@dataclass(frozen=True, kw_only=True)
class OpRule:
    """What must stand around one operator for the runtime to run it on integers.

    ``when`` says whether it is worth it: ``always``; ``joins``, only where its inputs are on integers anyway, so that
    it does not tear two integer operators apart; ``if_asked``, only by an explicit wish in the config.
    ``inside`` names operators that compute this one on their way out: one input that comes from such an operator and
    goes nowhere else stays in float.
    """

    inputs: bool = True
    output: bool = False
    weight: bool = False
    when: When = "always"
    inside: frozenset[str] = frozenset()
    because: str
    source: str


@dataclass(frozen=True, kw_only=True)
class Target:
    """A runtime: rules by canonical operator name; an operator without a rule stays in float.

    ``moves`` are operators that only move or select numbers, so they run on whatever grid comes in.
    ``fused`` lists, for an operator, the activations that its integer kernel computes on the way out.
    """

    name: str
    rules: Mapping[str, OpRule]
    moves: frozenset[str] = frozenset()
    fused: Mapping[str, frozenset[str]] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def rule(self, op: str | None) -> OpRule | None:
        """The rule of an operator, or None if it stays in float."""
        return self.rules.get(op) if op is not None else None

    def fuses(self, op: str | None, activation: str | None) -> bool:
        """Whether an activation right behind an operator is computed inside it."""
        return op is not None and activation in self.fused.get(op, frozenset())
