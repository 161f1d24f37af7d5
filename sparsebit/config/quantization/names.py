"""The quantizers and observers a config may name, and where each of them can be used.

The classes themselves live in ``sparsebit.quantization``, which sits above this package and may not be imported from
here. It, and anyone who writes a quantizer of their own, makes names known through ``register_name``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from sparsebit.config.quantization.tensor_spec import NumberFormat, Scheme, Side
from sparsebit.errors import RegistryError
from sparsebit.registry import Registry
from sparsebit.targets.schemes import SCHEMES_OF as SCHEMES_OF

Kind = Literal["quantizer", "observer"]

STATIC_A: tuple[Scheme, ...] = tuple(scheme for scheme in SCHEMES_OF["A"] if "token" not in scheme)
BOTH_STATIC: Mapping[Side, tuple[Scheme, ...]] = {"W": SCHEMES_OF["W"], "A": STATIC_A}


@dataclass(frozen=True, kw_only=True)
class NameRule:
    """Where a quantizer or an observer can be used. A side that is missing from ``schemes`` cannot use it at all."""

    schemes: Mapping[Side, tuple[Scheme, ...]] = field(default_factory=lambda: MappingProxyType(SCHEMES_OF))
    dtypes: tuple[NumberFormat, ...] = ("int", "fp8_e4m3", "fp8_e5m2")
    options: tuple[str, ...] | None = None  # names that OPTIONS may hold; None when nobody said
    because: str = ""


QUANTIZER_RULES: Registry[NameRule] = Registry("quantizer")
OBSERVER_RULES: Registry[NameRule] = Registry("observer")
RULES: Mapping[Kind, Registry[NameRule]] = {"quantizer": QUANTIZER_RULES, "observer": OBSERVER_RULES}

ALIASES: Mapping[Kind, Mapping[str, str]] = {
    "quantizer": {
        "lsq_plus": "lsq+",
        "lsqplus": "lsq+",
        "lsq_+": "lsq+",
        "do_re_fa": "dorefa",
        "ada_round": "adaround",
    },
    "observer": {
        "min_max": "minmax",
        "ema": "moving_average",
        "movingaverage": "moving_average",
        "kl": "kl_histogram",
        "klhistogram": "kl_histogram",
    },
}

_PER_TOKEN = (
    "the range of a token is taken when it arrives, so there is nothing to learn or to gather beforehand"
)
_INTEGER_GRID: tuple[NumberFormat, ...] = ("int",)

_BUILT_IN: Mapping[Kind, Mapping[str, NameRule]] = {
    "quantizer": {
        "uniform": NameRule(),
        "lsq": NameRule(schemes=BOTH_STATIC, dtypes=_INTEGER_GRID, because=_PER_TOKEN),
        "lsq+": NameRule(
            schemes={"W": ("per-channel-symmetric",), "A": ("per-tensor-affine",)},
            dtypes=_INTEGER_GRID,
            because="LSQ+ is defined for per-channel-symmetric weights and per-tensor-affine activations",
        ),
        "dorefa": NameRule(schemes=BOTH_STATIC, dtypes=_INTEGER_GRID, because=_PER_TOKEN),
        "pact": NameRule(
            schemes={"A": ("per-tensor-symmetric", "per-tensor-affine")},
            dtypes=_INTEGER_GRID,
            because="PACT learns one clipping value for a whole activation",
        ),
        "adaround": NameRule(
            schemes={"W": SCHEMES_OF["W"]},
            dtypes=_INTEGER_GRID,
            because="AdaRound chooses how weights are rounded",
        ),
    },
    "observer": {
        "minmax": NameRule(options=()),
        "moving_average": NameRule(
            schemes={"A": STATIC_A},
            options=("ema_ratio",),
            because="it averages over samples, and a weight is the same for all of them",
        ),
        "percentile": NameRule(schemes=BOTH_STATIC, options=("bins", "alpha"), because=_PER_TOKEN),
        "mse": NameRule(schemes=BOTH_STATIC, options=("bins", "steps", "shrink"), because=_PER_TOKEN),
        "kl_histogram": NameRule(schemes=BOTH_STATIC, options=("bins", "candidates"), because=_PER_TOKEN),
        "aciq": NameRule(schemes=BOTH_STATIC, options=("bins", "distribution"), because=_PER_TOKEN),
    },
}
for _kind, _rules in _BUILT_IN.items():
    for _name, _rule in _rules.items():
        RULES[_kind].register(_name)(_rule)


def canonical_name(kind: Kind, name: str) -> str:
    """The registry's spelling of a name: lower case, and the one name of those the old documents used.

    Example:
        >>> [canonical_name("quantizer", name) for name in ("LSQ_plus", "DoReFa", "lsq+")]
        ['lsq+', 'dorefa', 'lsq+']
    """
    spelled = re.sub(r"[\s-]+", "_", name.strip().lower())
    return ALIASES[kind].get(spelled, spelled)


def register_name(kind: Kind, name: str, rule: NameRule | None = None) -> None:
    """Let configs name a quantizer or observer, and say where it can be used.

    Without a ``rule``, a name that is known already keeps the one it has and a new one may be used anywhere; with
    one, it takes the place of what was there.

    Example:
        >>> register_name("observer", "doc_median", NameRule(options=("window",)))
        >>> OBSERVER_RULES["Doc_Median"].options
        ('window',)
        >>> OBSERVER_RULES.remove("doc_median")
    """
    spelled = re.sub(r"[\s-]+", "_", name.strip().lower())
    if spelled in ALIASES[kind]:
        raise RegistryError(
            f"{name!r} is another spelling of {kind} {ALIASES[kind][spelled]!r}", hint="choose another name"
        )
    if rule is not None or spelled not in RULES[kind]:
        RULES[kind].register(spelled, replace=True)(rule or NameRule())


def names_for(kind: Kind, side: Side) -> list[str]:
    """The names that can be used on one side."""
    return [name for name, rule in RULES[kind].items() if rule.schemes.get(side)]
