"""Methods by name in configs, and the decorator that adds one of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sparsebit.config.engine.plugins import PlugInClasses
from sparsebit.config.llm.methods import METHOD_RULES, MethodRule, Moment
from sparsebit.errors import RegistryError

Kind = TypeVar("Kind", bound=type)

METHODS: PlugInClasses[type[Any], MethodRule] = PlugInClasses(METHOD_RULES)
# By its method: when a plug-in runs, and what else it must have.
_KINDS: dict[str, tuple[Moment, tuple[str, ...]]] = {
    "solve": ("solve", ("needs_data", "follow")),
    "start": ("before", ()),
    "tune": ("after", ("follow",)),
}


def register_method(name: str, *, replace: bool = False) -> Callable[[Kind], Kind]:
    """Class decorator: let ``METHOD`` name a solver, a preparation or a tuner, with its fields as options.

    A frozen dataclass with the method ``solve`` (``Solver``), ``start`` (``Preparation``) or ``tune`` (``Tuner``).

    Example:
        >>> from sparsebit.llm.methods import Rtn
        >>> @register_method("doc_rtn")
        ... class Mine(Rtn): ...
        >>> METHODS["doc_rtn"](steps=3), METHOD_RULES["doc_rtn"].moment
        (Mine(steps=3), 'solve')
        >>> METHODS.remove("doc_rtn")
    """

    def add(kind: Kind) -> Kind:
        has = {*dir(kind), *getattr(kind, "__dataclass_fields__", ())}
        method = next((one for one in _KINDS if one in has), "")
        if not method:
            raise RegistryError(
                f"{kind.__qualname__} is not a method", expected=f"a class with {' or '.join(_KINDS)}"
            )
        moment, attributes = _KINDS[method]
        if lacks := [one for one in attributes if one not in has]:
            raise RegistryError(
                f"{kind.__qualname__} has no {' and no '.join(lacks)}", expected=f"a method with {method}"
            )
        return METHODS.register(name, replace=replace, rule=MethodRule(moment=moment, options=kind))(kind)

    return add
