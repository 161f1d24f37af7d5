"""The plug-ins that a config may name: their names, where each can be used, and its options.

The options of a plug-in are the fields of a dataclass: their names, their types (``Annotated`` with a ``Read`` where
only some values are right), and what its ``__post_init__`` refuses. Those of the built-in plug-ins are declared in this
package, where no torch is imported, and the classes that do the work inherit them. Those of a plug-in from outside are
its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from sparsebit.config.engine.problems import Problem, either, show, suggest
from sparsebit.config.engine.values import Read, Refused
from sparsebit.errors import ConfigError, RegistryError, SparsebitError, running_plug_in, with_article
from sparsebit.registry import Item, Registry


@dataclass(frozen=True, kw_only=True)
class PlugInRule:
    """What a config must know about a plug-in.

    Attributes:
        spellings: other names it is read by.
        options: a dataclass whose fields OPTIONS may set, or only their names; None where any are taken.
        because: why it cannot be used elsewhere, for messages.
    """

    spellings: tuple[str, ...] = ()
    options: type[Any] | tuple[str, ...] | None = None
    because: str = ""

    @property
    def option_names(self) -> tuple[str, ...] | None:
        """The names that OPTIONS may contain; None for any."""
        if self.options is None or isinstance(self.options, tuple):
            return self.options
        return (
            tuple(one.name for one in fields(self.options) if one.init) if is_dataclass(self.options) else ()
        )


K = TypeVar("K")
R = TypeVar("R", bound=PlugInRule)


class PlugIns(Registry[R]):
    """The plug-ins of one kind by name. A ``table`` holds the built-in ones: all that a config knows of each, in a row.

    Example:
        >>> circle = PlugInRule(spellings=("disc",), options=("radius",))
        >>> shapes = PlugIns("shape", PlugInRule, {"circle": circle})
        >>> shapes.canonical(" Disc "), list(shapes)
        ('circle', ['circle'])
    """

    def __init__(self, kind: str, default: type[R], table: Mapping[str, R] | None = None) -> None:
        super().__init__(kind)
        self._default = default
        for name, rule in (table or {}).items():
            self.add(name, rule)

    @property
    def aliases(self) -> dict[str, str]:
        """The name for each alternative spelling."""
        return {spelling: name for name, rule in self._items.items() for spelling in rule.spellings}

    def canonical(self, name: str) -> str:
        """The one spelling of a name: lower case, underscores, and no alias."""
        spelled = _underscored(name)
        return self.aliases.get(spelled, spelled)

    def add(self, name: str, rule: R | None = None) -> None:
        """Make a plug-in's name valid in configs. Without a ``rule``, a known name keeps its own.

        A new rule without spellings keeps those that are known.
        """
        spelled = _underscored(name)
        if spelled in self.aliases:
            raise RegistryError(
                f"{name!r} is another spelling of {self.kind} {self.aliases[spelled]!r}",
                hint="choose another name",
            )
        if rule is not None and not rule.spellings and spelled in self:
            rule = replace(rule, spellings=self[spelled].spellings)
        if rule is not None or spelled not in self:
            self.register(spelled, replace=True)(rule or self._default())

    def reader(self) -> Read:
        """Reads the name of a plug-in, built in or registered by a user."""
        expected = f"the name of {with_article(self.kind)}"

        def parse(value: object) -> str:
            if isinstance(value, str) and value in self:
                return self.canonical(value)
            wrong = self.canonical(value) if isinstance(value, str) else show(value)
            hint = suggest(wrong, list(self))
            own = "; a plug-in of yours must be imported first (--plug-in FILE on the command line)"
            raise Refused(expected, hint + own * hint.startswith("there are"))

        return Read(parse, expected, {"anyOf": [{"enum": sorted(self)}, {"type": "string"}]})


def _underscored(name: str) -> str:
    return re.sub(r"[\s-]+", "_", name.strip().lower())


class PlugInClasses(Registry[K], Generic[K, R]):
    """The classes of the plug-ins of one kind: a class and the rule for its name are added and removed together.

    Example:
        >>> shapes = PlugIns("shape", PlugInRule)
        >>> classes: PlugInClasses[type, PlugInRule] = PlugInClasses(shapes)
        >>> class Circle: ...
        >>> classes.register("Unit-Circle")(Circle) is classes["unit circle"], list(shapes)
        (True, ['unit_circle'])
        >>> classes.remove("unit_circle"), list(shapes)
        (None, [])
    """

    def __init__(self, rules: PlugIns[R], of: type | None = None) -> None:
        super().__init__(rules.kind, of)
        self.rules = rules

    def canonical(self, name: str) -> str:
        """The one spelling of a name, as in configs."""
        return self.rules.canonical(name)

    def register(self, name: str, *, replace: bool = False, rule: R | None = None) -> Callable[[Item], Item]:
        """Decorator that registers a class. Without a ``rule``, a known name keeps its own."""
        keep = super().register(name, replace=replace)

        def add(item: Item) -> Item:
            if not isinstance(item, type):
                raise RegistryError(
                    f"{item!r:.80} is not the class of {with_article(self.kind)}",
                    hint="register the class itself, not an object of it",
                )
            keep(item)
            self.rules.add(self.canonical(name), rule)
            return item

        return add

    def make(self, name: str, /, *args: Any, **options: Any) -> Any:
        """An object of a registered class."""
        kind: Any = self[name]
        with running_plug_in(f"the {self.kind} {name!r} cannot be made", kind):
            return kind(*args, **options)

    def remove(self, name: str) -> None:
        """Remove a class and the rule for its name."""
        super().remove(name)
        self.rules.remove(name)


def name_to_register(kind: type[Any], name: str | None, decorator: str) -> str:
    """The name a plug-in class is registered under: the given one, or its attribute ``TYPE``."""
    called = name if name is not None else getattr(kind, "TYPE", None)
    if not isinstance(called, str) or not called.strip():
        raise RegistryError(
            f"{kind.__qualname__} has no name to register it under",
            hint=f'write @{decorator}("name"), or give the class an attribute TYPE',
        )
    return called


def wrong_options(
    plug_in: str, rule: PlugInRule, options: Mapping[str, object], *, at: str = "", chosen_by: str = ""
) -> list[Problem]:
    """The mistakes in the options of a plug-in. The path of a problem is the option, or empty for all options.

    ``at`` is the key that holds the options, and ``chosen_by`` the key that names the plug-in, for complete paths.
    """
    known, found = rule.option_names, list[Problem]()
    for name in options:
        if known is not None and name not in known:
            hint = suggest(name, known) if known else f"{plug_in} has no options"
            found.append(Problem(path=name, expected=f"an option of {plug_in}", got=repr(name), hint=hint))
    if isinstance(rule.options, type) and is_dataclass(rule.options):
        found += wrong_values(plug_in, rule.options, options)
        if not found:
            found += _refusals(plug_in, rule.options, options)
    paths = [f"{at}.{one.path}".strip(".") for one in found]
    return [
        replace(one, path=path, keys=frozenset({path, chosen_by}) if chosen_by else frozenset())
        for one, path in zip(found, paths, strict=True)
    ]


class Settings:
    """The options of a built-in plug-in. Subclasses are frozen dataclasses; values are checked when one is made."""

    def __post_init__(self) -> None:
        for wrong in wrong_values(type(self).__name__, type(self), vars(self)):
            raise ConfigError(
                f"{type(self).__name__}: {wrong.path} cannot be used", expected=wrong.expected, got=wrong.got
            )


def wrong_values(plug_in: str, kind: type[Any], values: Mapping[str, object]) -> Iterator[Problem]:
    """The values that do not have the annotated types of a dataclass."""
    hints = _types_of(kind)  # type: ignore[arg-type]  # every class can be hashed
    for name, value in values.items():
        if expected := _mismatch(hints.get(name), value):
            expected = f"{expected} for option {name} of {plug_in}"
            yield Problem(path=name, expected=expected, got=show(value))


@cache
def _types_of(kind: type[Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):  # annotations that only a type checker can resolve
        return {}


def _mismatch(kind: Any, value: object) -> str:
    """The expected type in words, if ``value`` does not have it."""
    if get_origin(kind) is Annotated:
        base, *details = get_args(kind)
        if _mismatch(base, value):
            return next((one.expected for one in details if isinstance(one, Read)), _mismatch(base, value))
        try:
            for one in details:
                if isinstance(one, Read):
                    one.parse(value)
        except Refused as error:
            return error.expected
        return ""
    if get_origin(kind) is Literal:
        return "" if value in get_args(kind) else either(map(str, get_args(kind)))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    checks = {
        bool: (isinstance(value, bool), "true or false"),
        int: (is_number and isinstance(value, int), "an integer"),
        float: (is_number, "a number"),
        str: (isinstance(value, str), "a text"),
    }
    fits, words = checks.get(kind, (True, ""))
    return "" if fits else words


def _refusals(plug_in: str, kind: type[Any], options: Mapping[str, object]) -> Iterator[Problem]:
    """The errors that the plug-in itself raises when it is created with these options."""
    got = ", ".join(f"{name}={value!r}" for name, value in options.items()) or "no options"
    try:
        kind(**options)
    except SparsebitError as error:
        hint = error.message if error.expected else ""
        yield Problem(expected=error.expected or error.message, got=error.got or got, hint=hint)
    except Exception as error:
        hint = str(error) if isinstance(error, TypeError | ValueError) else f"{type(error).__name__}: {error}"
        yield Problem(expected=f"options that {plug_in} accepts", got=got, hint=hint)
