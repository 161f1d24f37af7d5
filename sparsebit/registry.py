"""Plug-ins by name, with errors for names that are taken or unknown."""

from __future__ import annotations

import difflib
import inspect
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from sparsebit.errors import RegistryError, with_article

T = TypeVar("T")
Item = TypeVar("Item")


class Registry(Mapping[str, T]):
    """Plug-ins of one kind by case-insensitive name.

    Example:
        >>> shapes: Registry[type] = Registry("shape")
        >>> @shapes.register("circle")
        ... class Circle: ...
        >>> shapes["Circle"] is Circle
        True
        >>> shapes["cirle"]
        Traceback (most recent call last):
        ...
        sparsebit.errors.RegistryError: no shape named 'cirle'
          next: did you mean 'circle'? there are: circle
    """

    def __init__(self, kind: str, of: type | None = None) -> None:
        """``of``: what plug-ins are derived from, or objects of; None takes anything."""
        self.kind, self.of = kind, of
        self._items: dict[str, T] = {}

    def canonical(self, name: str) -> str:
        """The one spelling of a name."""
        return name.lower()

    def register(self, name: str, *, replace: bool = False) -> Callable[[Item], Item]:
        """Decorator that registers an object under ``name``; ``replace=True`` overrides an existing one."""

        def add(item: Item) -> Item:
            if not isinstance(name, str) or not name.strip() or not name.isprintable():
                raise RegistryError(
                    f"{name!r:.80} is not a name for {with_article(self.kind)}", expected="a text of one line"
                )
            self._require_kind(item)
            key = self.canonical(name)
            if key in self._items and not replace:
                raise RegistryError(
                    f"{self.kind} {key!r} is already taken by {reprlib.repr(self._items[key])}",
                    hint="choose another name, or pass replace=True to override it on purpose",
                )
            self._items[key] = item  # type: ignore[assignment]
            return item

        return add

    def _require_kind(self, item: object) -> None:
        """Raise unless it is derived from the base of the plug-ins and has its methods."""
        of, kind = self.of, item if isinstance(item, type) else type(item)
        if of is None:
            return
        lacks = sorted(
            name
            for name in getattr(of, "__abstractmethods__", ())
            if getattr(getattr(kind, name, None), "__isabstractmethod__", not hasattr(kind, name))
        )
        if lacks or not issubclass(kind, of):
            which = f": it has no {', '.join(lacks)}" if lacks else ""
            raise RegistryError(
                f"{kind.__qualname__} is not {with_article(self.kind)}{which}",
                hint=f"derive it from {of.__module__}.{of.__qualname__} and write its methods",
            )
        for name, method in vars(of).items():
            if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
                self._require_signature(kind, name, method)

    def _require_signature(self, kind: type, name: str, method: Callable[..., object]) -> None:
        """Raise unless the class's method can be called with as many arguments as its base's."""
        own = getattr(kind, name)
        if own is method or not inspect.isfunction(own):
            return
        wanted = inspect.signature(method).parameters.values()
        count = sum(one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) for one in wanted)
        try:
            inspect.signature(own).bind(*range(count))
        except TypeError as error:
            raise RegistryError(
                f"{kind.__qualname__}.{name} cannot be called as the method of {with_article(self.kind)}: {error}",
                expected=f"def {name}({', '.join(one.name for one in wanted)})",
                got=f"def {name}{inspect.signature(own)}",
            ) from None

    def remove(self, name: str) -> None:
        """Remove a plug-in (tests and notebooks register again)."""
        self[name]  # an unknown name raises an error that lists the names
        del self._items[self.canonical(name)]

    def __getitem__(self, name: str) -> T:
        try:
            return self._items[self.canonical(name)]
        except (KeyError, AttributeError, TypeError):  # a name that is not a text is unknown too
            near = difflib.get_close_matches(str(name).lower(), self._items, n=1)
            advice = f"did you mean {near[0]!r}? " if near else ""
            raise RegistryError(
                f"no {self.kind} named {name!r:.80}",
                hint=f"{advice}there are: {', '.join(sorted(self._items))}",
            ) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.canonical(name) in self._items

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._items))

    def __len__(self) -> int:
        return len(self._items)
