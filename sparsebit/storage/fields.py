"""Plain data that is checked field by field: a wrong type raises our error, with the name of the field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from sparsebit.errors import ArtifactError
from sparsebit.storage.typed import from_plain

T = TypeVar("T")


class Fields:
    """The fields of a mapping that was read from a file.

    Example:
        >>> Fields({"bits": 4}, "a.json").integer("bits")
        4
    """

    def __init__(self, data: Any, where: str) -> None:
        self.where = where
        if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
            raise ArtifactError(f"{where} is not in sparsebit's format", hint="save the model again")
        self.data: dict[str, Any] = data

    @classmethod
    def each(cls, data: Any, where: str) -> Iterator[Fields]:
        """The mappings of a list."""
        if not isinstance(data, list):
            raise ArtifactError(f"{where} is not in sparsebit's format", hint="save the model again")
        return (cls(item, where) for item in data)

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def items(self) -> list[tuple[str, Any]]:
        """Every field, unchecked."""
        return list(self.data.items())

    def value(self, key: str) -> Any:
        """A field that its reader checks."""
        if key not in self.data:
            raise self.wrong(key, "a value")
        return self.data[key]

    def text(self, key: str) -> str:
        """A field that is a string."""
        return str(self._typed(key, str, "a text"))

    def flag(self, key: str) -> bool:
        """A field that is true or false."""
        return bool(self._typed(key, bool, "true or false"))

    def integer(self, key: str) -> int:
        """A field that is an integer of at least 0."""
        value = self._typed(key, int, "an integer")
        if isinstance(value, bool) or not 0 <= value < 2**63:
            raise self.wrong(key, "an integer of at least 0")
        return int(value)

    def number(self, key: str) -> float:
        """A field that is a finite number."""
        value = self._typed(key, int | float, "a number")
        if isinstance(value, bool) or not abs(value) < 1e300:
            raise self.wrong(key, "a finite number")
        return float(value)

    def texts(self, key: str) -> list[str]:
        """A field that is a list of strings."""
        value = self._typed(key, list, "a list of strings")
        if not all(isinstance(item, str) for item in value):
            raise self.wrong(key, "a list of strings")
        return list(value)

    def names(self, key: str) -> dict[str, str]:
        """A field that maps strings to strings."""
        value = self._typed(key, dict, "names with strings")
        if not all(isinstance(item, str) for pair in value.items() for item in pair):
            raise self.wrong(key, "names with strings")
        return dict(value)

    def into(self, kind: type[T]) -> T:
        """All fields as a dataclass of this kind, each of its annotated type."""
        try:
            return from_plain(kind, self.data)
        except (TypeError, ValueError) as error:
            hint = "save the model again"
            raise ArtifactError(f"{self.where} is not in sparsebit's format: {error}", hint=hint) from None

    def section(self, key: str) -> Fields:
        """A field that contains fields."""
        return Fields(self._typed(key, dict, "a section"), f"{self.where}: {key}")

    def wrong(self, key: str, expected: str) -> ArtifactError:
        """The error for a field with a wrong value."""
        return ArtifactError(
            f"{self.where}: {key!r} is not in sparsebit's format",
            expected=expected,
            got=ascii(self.data.get(key))[:80],
            hint="save the model again",
        )

    def _typed(self, key: str, kind: Any, expected: str) -> Any:
        if not isinstance(self.data.get(key), kind):
            raise self.wrong(key, expected)
        return self.data[key]
