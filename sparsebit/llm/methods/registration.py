"""Methods of the user's own, by name in configs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sparsebit.config.llm.methods import METHOD_RULES, MethodRule, Moment
from sparsebit.errors import RegistryError
from sparsebit.llm.methods.preparation import PREPARATIONS
from sparsebit.llm.methods.solver import SOLVERS
from sparsebit.llm.methods.tuner import TUNERS
from sparsebit.registry import Registry

Kind = TypeVar("Kind", bound=type)

# By its method: when a plug-in runs, where it is kept, and what else it must have.
_KINDS: dict[str, tuple[Moment, Registry[Any], tuple[str, ...]]] = {
    "solve": ("solve", SOLVERS, ("needs_data", "follow")),
    "start": ("before", PREPARATIONS, ()),
    "tune": ("after", TUNERS, ("follow",)),
}


def register_method(name: str, *, replace: bool = False) -> Callable[[Kind], Kind]:
    """Class decorator: let ``METHOD`` name a solver, a preparation or a tuner, with its fields as options.

    A frozen dataclass with the method ``solve`` (``Solver``), ``start`` (``Preparation``) or ``tune`` (``Tuner``).

    Example:
        >>> from sparsebit.llm.methods import Rtn
        >>> @register_method("doc_rtn")
        ... class Mine(Rtn): ...
        >>> SOLVERS["doc_rtn"](steps=3), METHOD_RULES["doc_rtn"].moment
        (Mine(steps=3), 'solve')
        >>> SOLVERS.remove("doc_rtn"), METHOD_RULES.remove("doc_rtn")
        (None, None)
    """

    def add(kind: Kind) -> Kind:
        has = {*dir(kind), *getattr(kind, "__dataclass_fields__", ())}
        method = next((one for one in _KINDS if one in has), "")
        if not method:
            raise RegistryError(
                f"{kind.__qualname__} is not a method", expected=f"a class with {' or '.join(_KINDS)}"
            )
        moment, registry, attributes = _KINDS[method]
        if lacks := [one for one in attributes if one not in has]:
            raise RegistryError(
                f"{kind.__qualname__} has no {' and no '.join(lacks)}", expected=registry.kind
            )
        spelled = METHOD_RULES.canonical(name)
        METHOD_RULES.register(spelled, replace=replace)(MethodRule(moment=moment, options=kind))
        registry.register(spelled, replace=replace)(kind)
        return kind

    return add
