"""The quantizers and observers that a config may name: where each can be used, and its options.

The classes that do the work live above this package. They inherit the settings declared here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Annotated, Literal

from sparsebit.config.engine.plugins import PlugInRule, PlugIns, Settings
from sparsebit.config.engine.values import FRACTION, POSITIVE, Read, Refused, whole
from sparsebit.errors import ConfigError
from sparsebit.targets.schemes import SCHEMES_OF, NumberFormat, Scheme, Side

Kind = Literal["quantizer", "observer"]
Distribution = Literal["gaus", "laplace"]

STATIC_A: tuple[Scheme, ...] = tuple(scheme for scheme in SCHEMES_OF["A"] if "token" not in scheme)
BOTH_STATIC: Mapping[Side, tuple[Scheme, ...]] = {"W": SCHEMES_OF["W"], "A": STATIC_A}


@dataclass(frozen=True, kw_only=True)
class NameRule(PlugInRule):
    """Where a quantizer or an observer can be used. A side that is missing from ``schemes`` cannot use it."""

    schemes: Mapping[Side, tuple[Scheme, ...]] = field(default_factory=lambda: MappingProxyType(SCHEMES_OF))
    dtypes: tuple[NumberFormat, ...] = ("int", "fp8_e4m3", "fp8_e5m2")


def _parse_bins(value: object) -> object:
    if isinstance(value, int) and value.bit_count() == 1 and 64 <= value <= 8192:
        return value
    raise Refused(BINS.expected)


BINS = Read(_parse_bins, "a power of two from 64 to 8192", {})


@dataclass(frozen=True, kw_only=True)
class PactSettings(Settings):
    """``alpha_value`` is the clipping value that training starts from."""

    alpha_value: Annotated[float, POSITIVE] = 10.0


@dataclass(frozen=True, kw_only=True)
class MovingAverageSettings(Settings):
    """``ema_ratio`` is the weight of earlier batches."""

    ema_ratio: Annotated[float, FRACTION] = 0.9


@dataclass(frozen=True, kw_only=True)
class HistogramSettings(Settings):
    """``bins`` to each side of zero."""

    bins: Annotated[int, BINS] = 2048


@dataclass(frozen=True, kw_only=True)
class PercentileSettings(HistogramSettings):
    """``alpha`` is the fraction of the values that is clipped on each side of zero."""

    alpha: Annotated[float, FRACTION] = 1e-3


@dataclass(frozen=True, kw_only=True)
class MSESettings(HistogramSettings):
    """The full range and ``steps - 1`` smaller ones are tried, in steps of ``shrink`` times the full range."""

    steps: Annotated[int, whole(1)] = 80
    shrink: Annotated[float, FRACTION] = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shrink * (self.steps - 1) >= 1:
            got = f"steps={self.steps}, shrink={self.shrink}"
            raise ConfigError("mse: no candidate range is left", expected="shrink * (steps - 1) < 1", got=got)


@dataclass(frozen=True, kw_only=True)
class KLSettings(HistogramSettings):
    """``candidates`` is how many ranges are compared."""

    candidates: Annotated[int, whole(1)] = 128


@dataclass(frozen=True, kw_only=True)
class ACIQSettings(HistogramSettings):
    """``distribution`` is the assumed distribution of the values."""

    distribution: Distribution = "gaus"

    def __post_init__(self) -> None:
        object.__setattr__(self, "distribution", str(self.distribution).lower())
        super().__post_init__()


_PER_TOKEN = (
    "the range of each token is measured when it is quantized; nothing can be learned or measured before"
)
_INTEGERS: tuple[NumberFormat, ...] = ("int",)
_LEARNS = NameRule(schemes=BOTH_STATIC, dtypes=_INTEGERS, options=(), because=_PER_TOKEN)

QUANTIZER_RULES = PlugIns(
    "quantizer",
    NameRule,
    {
        "uniform": NameRule(options=()),
        "lsq": _LEARNS,
        "dorefa": replace(_LEARNS, spellings=("do_re_fa",)),
        "lsq+": NameRule(
            spellings=("lsq_plus", "lsqplus", "lsq_+"),
            schemes={"W": ("per-channel-symmetric",), "A": ("per-tensor-affine",)},
            dtypes=_INTEGERS,
            options=(),
            because="LSQ+ is defined for per-channel-symmetric weights and per-tensor-affine activations",
        ),
        "pact": NameRule(
            schemes={"A": ("per-tensor-symmetric", "per-tensor-affine")},
            dtypes=_INTEGERS,
            options=PactSettings,
            because="PACT learns one clipping value for a whole activation",
        ),
        "adaround": NameRule(
            spellings=("ada_round",),
            schemes={"W": SCHEMES_OF["W"]},
            dtypes=_INTEGERS,
            options=(),
            because="AdaRound chooses how weights are rounded",
        ),
    },
)
_MEASURES = NameRule(schemes=BOTH_STATIC, because=_PER_TOKEN)
OBSERVER_RULES = PlugIns(
    "observer",
    NameRule,
    {
        "minmax": NameRule(spellings=("min_max",), options=()),
        "moving_average": NameRule(
            spellings=("ema", "movingaverage"),
            schemes={"A": STATIC_A},
            options=MovingAverageSettings,
            because="it averages over samples, and a weight is the same for all of them",
        ),
        "percentile": replace(_MEASURES, options=PercentileSettings),
        "mse": replace(_MEASURES, options=MSESettings),
        "kl_histogram": replace(_MEASURES, spellings=("kl", "klhistogram"), options=KLSettings),
        "aciq": replace(_MEASURES, options=ACIQSettings),
    },
)
RULES: Mapping[Kind, PlugIns[NameRule]] = {"quantizer": QUANTIZER_RULES, "observer": OBSERVER_RULES}


def register_name(kind: Kind, name: str, rule: NameRule | None = None) -> None:
    """Make the name of a quantizer or observer valid in configs, and say where it can be used.

    Without a ``rule``, a name that is known already keeps the one it has and a new one may be used anywhere; with
    one, it takes the place of what was there.

    Example:
        >>> register_name("observer", "doc_median", NameRule(options=("window",)))
        >>> OBSERVER_RULES["Doc_Median"].options
        ('window',)
        >>> OBSERVER_RULES.remove("doc_median")
    """
    RULES[kind].add(name, rule)


def names_for(kind: Kind, side: Side) -> list[str]:
    """The names that can be used on one side."""
    return [name for name, rule in RULES[kind].items() if rule.schemes.get(side)]
