"""Quantizers by name, and the decorator that adds a class of the user's own."""

from __future__ import annotations

from typing import Any, TypeVar

from sparsebit.config.engine.plugins import PlugInClasses, name_to_register
from sparsebit.config.quantization.plugins import QUANTIZER_RULES, NameRule
from sparsebit.errors import RegistryError
from sparsebit.quantization.quantizers.base import Quantizer

Kind = TypeVar("Kind", bound="type[Quantizer]")

# Methods that quantizers of the old toolkit override; here they would silently have no effect.
OLD_METHODS = ("_forward", "calc_qparams", "_qparams_preprocess", "update_observer")

QUANTIZERS: PlugInClasses[type[Quantizer], NameRule] = PlugInClasses(QUANTIZER_RULES, Quantizer)


def register_quantizer(kind: Any = None, *, name: str | None = None, replace: bool = False) -> Any:
    """Class decorator that makes a quantizer available to configs under its ``TYPE``.

    Example:
        >>> from sparsebit.quantization.quantizers.uniform import Uniform
        >>> @register_quantizer
        ... class Doc(Uniform):
        ...     TYPE = "doc"
        >>> QUANTIZERS["DOC"] is Doc
        True
        >>> QUANTIZERS.remove("doc")
    """
    if isinstance(kind, str):
        kind, name = None, kind

    def add(cls: Kind) -> Kind:
        label = name_to_register(cls, name, "register_quantizer")
        if old := [method for method in OLD_METHODS if hasattr(cls, method)]:
            raise RegistryError(
                f"{cls.__qualname__} is written for the 2022 Sparsebit: nothing here calls its {', '.join(old)}",
                hint="write set_range, prepare or grid instead; docs/how-to/quantizer.md says what each one does",
            )
        if not cls.forward.__module__.startswith("sparsebit."):
            raise RegistryError(
                f"{cls.__qualname__} overrides forward, which measures, switches and exports",
                hint="write prepare or snap instead; docs/how-to/quantizer.md says what each one does",
            )
        return QUANTIZERS.register(label, replace=replace)(cls)

    return add if kind is None else add(kind)
