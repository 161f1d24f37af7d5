"""What a check found, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from sparsebit.above import in_notebook
from sparsebit.export.errors import ExportError


@dataclass(frozen=True, kw_only=True)
class TensorAgreement:
    """Codes of one tensor in the runtime against the torch model, given equal inputs."""

    name: str
    side: str
    elements: int
    off: int  # codes that differ
    most: int  # by how much at most
    unexplained: int = 0  # of those, codes that rounding floats and biases does not explain
    blame: str = ""  # for the unexplained: "kernel" (an integer kernel rounds in its own way) or "file"

    @property
    def share(self) -> float:
        """The part of the codes that differ."""
        return self.off / max(self.elements, 1)


@dataclass(frozen=True, kw_only=True)
class OutputAgreement:
    """One output of the model, in the runtime against torch."""

    name: str
    error: float  # largest difference, relative to the largest value, from equal codes
    sqnr_db: (
        float  # signal to difference of the whole file, rounding differences adding up from layer to layer
    )


@dataclass(frozen=True, kw_only=True)
class IntegerOp:
    """One operator that was planned on integers, and what the runtime made of it."""

    name: str
    op: str
    runs_as: str
    on_integers: bool
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """Result of running an exported file."""

    path: Path
    runtime: str
    tensors: tuple[TensorAgreement, ...] = ()
    outputs: tuple[OutputAgreement, ...] = ()
    ops: tuple[IntegerOp, ...] = ()
    problems: tuple[str, ...] = ()

    _repr_html_ = in_notebook

    @property
    def ok(self) -> bool:
        """Whether the file computes what the model computes."""
        return not self.problems

    @property
    def fallbacks(self) -> tuple[IntegerOp, ...]:
        """Operators that were planned on integers and run in float."""
        return tuple(op for op in self.ops if not op.on_integers)

    @property
    def share_off(self) -> float:
        """The part of all codes that differ."""
        return sum(t.off for t in self.tensors) / max(sum(t.elements for t in self.tensors), 1)

    def raise_for_mismatch(self) -> CheckReport:
        """Itself, if the numbers agree."""
        if self.ok:
            return self
        raise ExportError(
            f"the file does not compute in {self.runtime} what the model computes",
            where=str(self.path),
            got="; ".join(self.problems[:8]),
            hint="pass check=False to keep the file anyway, and show the table of export.check for details",
        )

    def __rich__(self) -> Any:
        integers = sum(op.on_integers for op in self.ops)
        verdict = "agrees with torch" if self.ok else "DIFFERS from torch"
        head = Text(
            f"{self.path.name} in {self.runtime}: {verdict}; "
            f"{integers} of {len(self.ops)} planned operators on integers"
        )
        parts: list[Any] = [head]
        if self.ops:
            table = Table(
                "operator", "type", "runs as", "why not on integers", title="operators planned on integers"
            )
            for op in self.ops:
                table.add_row(op.name, op.op, op.runs_as, op.why)
            parts.append(table)
        if self.tensors:
            table = Table(
                "tensor", "", "codes", "off", "most", "", title="codes against torch, from equal inputs"
            )
            for t in self.tensors:
                table.add_row(
                    t.name, t.side, str(t.elements), f"{t.off} ({t.share:.3%})", str(t.most), t.blame
                )
            parts.append(table)
        if self.outputs:
            table = Table("output", "largest error", "SQNR", title="outputs")
            for o in self.outputs:
                table.add_row(o.name, f"{o.error:.1e}", f"{o.sqnr_db:.1f} dB")
            parts.append(table)
        parts += [Text(f"- {problem}", style="red") for problem in self.problems]
        return Group(*parts)

    def __str__(self) -> str:
        console = Console(width=140, file=None, record=False, force_terminal=False, color_system=None)
        with console.capture() as captured:
            console.print(self)
        return captured.get()
