"""What one runtime can execute on integers, as plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from sparsebit.errors import RegistryError
from sparsebit.targets.schemes import SCHEMES, SIDES, NumberFormat, Scheme, Side

When = Literal["always", "joins", "if_asked"]
Forms = Literal["cpu", "tensorrt"]


@dataclass(frozen=True, kw_only=True)
class OpRule:
    """What must be quantized around one operator for the runtime to run it on integers.

    ``when`` says when to quantize: ``always``; ``joins``, only if its inputs are quantized anyway, so that it does not
    separate two integer operators; ``if_asked``, only if the config names it. ``inside`` names operators into which
    this one is fused: one input that comes from such an operator and has no other reader stays in float.
    ``channel_axes``: by the rank of an input, the axes that may have a scale per channel; by default any. ``narrow``:
    output channels, and products for each of its numbers. An operator with at most these numbers, and its weight, stay
    in float if its input is in float, because the conversion would cost more than integers save.
    """

    inputs: bool = True
    output: bool = False
    weight: bool = False
    when: When = "always"
    inside: frozenset[str] = frozenset()
    channel_axes: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    narrow: tuple[int, int] = (0, 0)
    because: str

    def __post_init__(self) -> None:
        _require("when", [self.when], get_args(When))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number format with the widths and schemes that go with it."""

    dtype: NumberFormat = "int"
    bits: tuple[int, ...] = (8,)
    schemes: tuple[Scheme, ...]
    group_sizes: tuple[int, ...] | None = None  # None: any

    def __post_init__(self) -> None:
        _require("dtype", [self.dtype], get_args(NumberFormat))
        _require("bits", self.bits, range(2, 17))
        _require("schemes", self.schemes, SCHEMES)


@dataclass(frozen=True, kw_only=True)
class Accepts:
    """What a target accepts for its weights or for its activations, and why it refuses everything else.

    List a combination if the runtime computes the right result and may be fast at it. Combinations that only work in
    float belong to the target ``virtual``.
    """

    rows: tuple[Row, ...]
    dtype: str = ""  # why other number formats are refused
    scheme: str = ""  # why other schemes are refused
    bits: str = ""  # why other widths are refused
    group_size: str = ""  # why other group sizes are refused


@dataclass(frozen=True, kw_only=True)
class Target:
    """A runtime: everything the library must know to plan, configure, write and check a model for it.

    Register your own with ``register_target``; config, command line, plan, export and check then accept it.

    Placement:
        rules: by canonical operator name; an operator without a rule stays in float.
        fused: for an operator, the activations that its integer kernel applies to its result.
        split: activations that it runs on integers as the product of their input and a gate: "hardswish", "silu".
        source: where the rules were found.

    Config:
        accepts: what it accepts for weights ("W") and activations ("A"); if one is missing, anything is accepted for
        it.
        preset: the config to start from; ``int8_<name of the target>`` is this one with its BACKEND replaced.
        stored_bits: widths at which a smaller weight really takes less space in a file.

    File:
        forms: how quantized tensors are written. "cpu" shifts 8-bit activations to unsigned integers and brings the
            graph into the forms that CPU kernels fuse; "tensorrt" keeps them signed and checks TensorRT's rules.
        runtime: the package that runs the file on this machine, for timing and the check. With None, the check runs the
        file in ONNX Runtime.
        kernels: by ONNX operator, the node types in the runtime's optimized graph that mean "runs on integers".
    """

    name: str
    rules: Mapping[str, OpRule] = field(default_factory=dict)
    fused: Mapping[str, frozenset[str]] = field(default_factory=dict)
    split: frozenset[str] = frozenset()
    source: str = ""
    accepts: Mapping[Side, Accepts] = field(default_factory=dict)
    preset: str = "int8_onnxruntime"
    stored_bits: tuple[int, ...] = (4, 8)
    forms: Forms = "cpu"
    runtime: str | None = None
    kernels: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _require("forms", [self.forms], get_args(Forms))
        _require("accepts", self.accepts, SIDES)
        for name, rule in self.rules.items() if isinstance(self.rules, Mapping) else [("", self.rules)]:
            if not isinstance(rule, OpRule):
                raise RegistryError(
                    f"target {self.name!r}: rules map names of operators to OpRule",
                    got=f"{name} {rule!r:.80}".strip(),
                )

    def rule(self, op: str | None) -> OpRule | None:
        """The rule of an operator, or None if it stays in float."""
        return self.rules.get(op) if op is not None else None

    def fuses(self, op: str | None, activation: str | None) -> bool:
        """Whether an activation directly after an operator is fused into it."""
        return op is not None and activation in self.fused.get(op, frozenset())


def _require(field: str, values: Iterable[object], known: Collection[object]) -> None:
    """Raise for a misspelt value, which would silently match nothing."""
    if wrong := [value for value in values if value not in known]:
        raise RegistryError(
            f"{field} of a target cannot be {wrong[0]!r:.80}", expected=", ".join(map(str, known))
        )
