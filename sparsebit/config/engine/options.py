"""The options of one plug-in, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

Scalar = bool | int | float | str


class Options(Mapping[str, Scalar]):
    """An immutable mapping, so that objects that hold it can be hashed.

    Example:
        >>> Options({"alpha": 0.001})
        Options(alpha=0.001)
        >>> len({Options(a=1, b=2), Options(b=2, a=1)})
        1
    """

    def __init__(self, values: Mapping[str, Scalar] | None = None, **more: Scalar) -> None:
        self._values: dict[str, Scalar] = {**(values or {}), **more}

    def __getitem__(self, key: str) -> Scalar:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return f"Options({', '.join(f'{key}={value!r}' for key, value in self._values.items())})"
