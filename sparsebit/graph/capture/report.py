"""The decisions made during capturing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sparsebit.display import printable
from sparsebit.graph.capture.call.input_size import InputSize
from sparsebit.graph.capture.source import Source

NoteKind = Literal["size-fixed", "data", "random", "constant", "hooks", "mode", "mutation", "state"]
# Notes of these kinds can make the graph differ from the model on other inputs, so they are also warned about.
WARNED: tuple[NoteKind, ...] = ("data", "random", "state")


@dataclass(frozen=True)
class Note:
    """One decision, and the line of the model that made it necessary."""

    kind: NoteKind
    text: str
    source: Source | None = None

    def __str__(self) -> str:
        return f"{self.text} ({self.source})" if self.source else self.text


@dataclass
class CaptureReport:
    """What a reader of the graph should know and the graph itself does not show."""

    frontend: str = ""
    notes: list[Note] = field(default_factory=list)
    sizes: list[InputSize] = field(default_factory=list)  # free or fixed, and why

    def add(self, note: Note) -> None:
        """Add a note once, however often its line ran."""
        if note not in self.notes:
            self.notes.append(note)

    def of_kind(self, *kinds: NoteKind) -> list[Note]:
        """The notes of some kinds."""
        return [note for note in self.notes if note.kind in kinds]

    def __str__(self) -> str:
        lines = [f"captured by {self.frontend or 'hand'}"]
        notes = [f"  {note.kind}: {note}" for note in self.notes]
        return printable("\n".join([*lines, *(f"  size: {size}" for size in self.sizes), *notes]))
