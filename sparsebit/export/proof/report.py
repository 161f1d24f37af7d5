"""The result of a check, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from sparsebit.display import as_text, in_notebook
from sparsebit.errors import ExportError
from sparsebit.export.proof.outputs import OutputAgreement

# The reason given for a quantized file that is slower than the float one.
FLOAT_BETWEEN_INTEGERS = (
    "each operator in float between integer ones costs two conversions; OpenVINO (preset int8_openvino) fuses "
    "activations such as Gelu into the layer before, and ReLU costs nothing in any runtime; see "
    "docs/troubleshooting.md, 'The int8 file is not faster than the float file'"
)


@dataclass(frozen=True, kw_only=True)
class TensorAgreement:
    """The quantized values of one tensor in the runtime, compared with the torch model on equal inputs."""

    name: str
    side: str
    elements: int
    mismatched: int  # values that differ
    largest: int  # by how many steps at most
    unexplained: int = 0  # of those, values that the rounding of floats and biases does not explain
    blame: str = ""  # for the unexplained: "kernel" (an integer kernel rounds in its own way) or "file"

    @property
    def share(self) -> float:
        """The fraction of the values that differ."""
        return self.mismatched / max(self.elements, 1)


@dataclass(frozen=True, kw_only=True)
class IntegerOp:
    """One operator that was planned on integers, and how the runtime executes it."""

    name: str
    op: str
    runs_as: str
    on_integers: bool
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Result of running an exported file: first end to end, then piece by piece.

    ``outputs`` is what a user would measure: the complete file compared with the complete model. ``tensors`` is the
    proof: each piece between two quantized tensors alone, started from equal quantized values.
    """

    path: Path
    runtime: str
    tensors: tuple[TensorAgreement, ...] = ()
    outputs: tuple[OutputAgreement, ...] = ()
    ops: tuple[IntegerOp, ...] = ()
    # Operators of the runtime's graph that compute on floats.
    float_ops: Mapping[str, int] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    _repr_html_ = in_notebook

    @property
    def ok(self) -> bool:
        """Whether the file computes the same as the model, piece by piece."""
        return not self.problems

    @property
    def fallbacks(self) -> tuple[IntegerOp, ...]:
        """Operators that were planned on integers and run in float."""
        return tuple(op for op in self.ops if not op.on_integers)

    @property
    def mismatch_share(self) -> float:
        """The fraction of all quantized values that differ, piece by piece."""
        return sum(t.mismatched for t in self.tensors) / max(sum(t.elements for t in self.tensors), 1)

    @property
    def end_to_end(self) -> str:
        """The output that differs most, in one sentence."""
        if not self.outputs:
            return "no outputs were compared"
        worst = min(self.outputs, key=lambda output: output.sqnr_db)
        which = f"output {worst.name!r}: " if len(self.outputs) > 1 else ""
        return f"{which}{worst}, on {worst.samples} samples"

    @property
    def piece_by_piece(self) -> str:
        """The proof in one sentence."""
        verdict = "every piece gives the same results as torch" if self.ok else "the file DIFFERS from torch"
        if not self.tensors:
            return verdict
        largest = max(t.largest for t in self.tensors)
        return f"{verdict}; {self.mismatch_share:.3%} of the quantized values differ, by {largest} at most"

    @property
    def on_integers(self) -> str:
        """How many of the planned operators run on integers, in one sentence; empty if none was planned."""
        if not self.ops:
            sides = {tensor.side for tensor in self.tensors}
            none = "no operator runs on integers, so the file is smaller than a float one, not faster"
            return none if sides == {"W", "A"} and self.float_ops else ""
        return f"{len(self.ops) - len(self.fallbacks)} of {len(self.ops)} planned operators run on integers"

    @property
    def in_float(self) -> str:
        """The operators that compute in float, with counts; empty if unknown or none."""
        return ", ".join(f"{count} {op}" for op, count in self.float_ops.items())

    def summary(self) -> dict[str, Any]:
        """Everything as plain values, for JSON: end to end first."""
        return {
            "ok": self.ok,
            "end_to_end": [vars(output) for output in self.outputs],
            "piece_by_piece": {
                "mismatch_share": self.mismatch_share,
                "tensors": [vars(tensor) for tensor in self.tensors],
            },
            "ops": [vars(op) for op in self.ops],
            "float_ops": dict(self.float_ops),
            "problems": list(self.problems),
            "path": str(self.path),
            "runtime": self.runtime,
        }

    def raise_for_mismatch(self) -> CheckReport:
        """Return the report, or raise if the values do not agree."""
        if self.ok:
            return self
        raise ExportError(
            f"the file does not compute in {self.runtime} what the model computes",
            where=str(self.path),
            got="; ".join(self.problems[:8]),
            hint="check=False keeps the file anyway; sparsebit.export.check(...) shows every tensor",
        )

    def __rich__(self) -> Any:
        sentences = (
            ("end to end", self.end_to_end),
            ("piece by piece", self.piece_by_piece),
            ("speed", self.on_integers),
            ("in float", self.in_float),
        )
        parts: list[Any] = [Text(f"{self.path.name} in {self.runtime}")]
        parts += [Text(f"  {name}: {text}") for name, text in sentences if text]
        parts += [Text(f"- {problem}", style="red") for problem in self.problems]
        if len(self.outputs) > 1:
            table = Table(
                "output", "difference", "relative", "SQNR", "same class", title="end to end, whole file"
            )
            for o in self.outputs:
                classes = "" if o.same_class is None else f"{o.same_class} of {o.samples}"
                table.add_row(
                    o.name, f"{o.difference:.3g}", f"{o.relative:.2%}", f"{o.sqnr_db:.1f} dB", classes
                )
            parts.append(table)
        if self.tensors:
            table = Table(
                "tensor", "", "values", "mismatch", "by", "cause", title="piece by piece, from equal inputs"
            )
            for t in self.tensors:
                cells = (str(t.elements), f"{t.mismatched} ({t.share:.3%})", str(t.largest))
                table.add_row(t.name, t.side, *cells, t.blame)
            parts.append(table)
        if self.ops:
            table = Table(
                "operator", "type", "runs as", "why not on integers", title="operators planned on integers"
            )
            for op in self.ops:
                table.add_row(op.name, op.op, op.runs_as, op.why)
            parts.append(table)
        return Group(*parts)

    __str__ = as_text
