"""The pruning criteria a config may name, and what each of them can score.

The criteria themselves live in ``sparsebit.sparse``, which may not be imported from here. It, and anyone who writes a
criterion of their own, makes names known through ``register_sparser_name``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from sparsebit.errors import RegistryError
from sparsebit.registry import Registry

SparsityType = Literal["structured", "unstructured", "nm", "block"]
TYPES: tuple[SparsityType, ...] = get_args(SparsityType)


@dataclass(frozen=True, kw_only=True)
class SparserRule:
    """What a criterion can be used for."""

    types: tuple[SparsityType, ...] = TYPES
    options: tuple[str, ...] | None = None  # names that OPTIONS may hold; None when nobody said
    because: str = ""


SPARSER_RULES: Registry[SparserRule] = Registry("pruning criterion")

SPARSER_ALIASES: Mapping[str, str] = {
    "l0": "l0norm",
    "l0_norm": "l0norm",
    "l1": "l1norm",
    "l1_norm": "l1norm",
    "magnitude": "l1norm",
    "l2": "l2norm",
    "l2_norm": "l2norm",
    "bn_scale": "slimming",
    "network_slimming": "slimming",
    "taylor1": "taylor",
    "obd": "hessian",
    "hessian_diagonal": "hessian",
    "wanda": "activation_norm",
    "snip": "gradient_weight",
    "gradient_x_weight": "gradient_weight",
    "h_rank": "hrank",
}


def canonical_sparser(name: str) -> str:
    """The registry's spelling of a criterion: lower case, and the one name of those in use for it.

    Example:
        >>> [canonical_sparser(name) for name in ("L1-norm", "Wanda", "HRank")]
        ['l1norm', 'activation_norm', 'hrank']
    """
    spelled = re.sub(r"[\s-]+", "_", name.strip().lower())
    return SPARSER_ALIASES.get(spelled, spelled)


def register_sparser_name(name: str, rule: SparserRule | None = None) -> None:
    """Let configs name a criterion, and say what it can be used for; a new rule takes the place of an old one.

    Example:
        >>> register_sparser_name("doc_age", SparserRule(types=("structured",)))
        >>> SPARSER_RULES["doc_age"].types
        ('structured',)
        >>> SPARSER_RULES.remove("doc_age")
    """
    spelled = re.sub(r"[\s-]+", "_", name.strip().lower())
    if spelled in SPARSER_ALIASES:
        raise RegistryError(
            f"{name!r} is another spelling of {SPARSER_ALIASES[spelled]!r}", hint="choose another name"
        )
    if rule is not None or spelled not in SPARSER_RULES:
        SPARSER_RULES.register(spelled, replace=True)(rule or SparserRule())


_WHOLE_CHANNELS: tuple[SparsityType, ...] = ("structured",)
_SEVERAL: tuple[SparsityType, ...] = ("structured", "block")

_BUILT_IN: Mapping[str, SparserRule] = {
    "l0norm": SparserRule(
        types=_SEVERAL, options=("epsilon",), because="it counts elements, so one alone is always 0 or 1"
    ),
    "l1norm": SparserRule(options=()),
    "l2norm": SparserRule(options=()),
    "random": SparserRule(options=("seed",)),
    "slimming": SparserRule(
        types=_WHOLE_CHANNELS,
        options=("strength",),
        because="it reads the scale that a norm gives to a whole channel",
    ),
    "fisher": SparserRule(options=()),
    "taylor": SparserRule(options=()),
    "taylor2": SparserRule(options=()),
    "hrank": SparserRule(
        types=_WHOLE_CHANNELS, options=(), because="it takes the rank of the map that a whole channel makes"
    ),
    "fpgm": SparserRule(
        types=_WHOLE_CHANNELS, options=(), because="it compares whole filters with each other"
    ),
    "lamp": SparserRule(options=()),
    "hessian": SparserRule(options=("samples", "seed")),
    "activation_norm": SparserRule(options=()),
    "gradient_weight": SparserRule(options=()),
}
for _name, _rule in _BUILT_IN.items():
    register_sparser_name(_name, _rule)
