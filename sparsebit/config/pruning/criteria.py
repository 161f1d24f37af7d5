"""The pruning criteria that a config may name: what each can score, and its options.

The criteria themselves live above this package. They inherit the settings declared here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from sparsebit.config.engine.plugins import PlugInRule, PlugIns, Settings
from sparsebit.config.engine.values import whole

SparsityType = Literal["structured", "unstructured", "nm", "block"]
TYPES: tuple[SparsityType, ...] = get_args(SparsityType)


@dataclass(frozen=True, kw_only=True)
class SparserRule(PlugInRule):
    """What a criterion can be used for."""

    types: tuple[SparsityType, ...] = TYPES


@dataclass(frozen=True)
class L0NormSettings(Settings):
    """Weights above ``epsilon`` count."""

    epsilon: float = 1e-3


@dataclass(frozen=True)
class RandomSettings(Settings):
    """``seed`` of the scores."""

    seed: int = 0


@dataclass(frozen=True)
class SlimmingSettings(Settings):
    """``strength`` of the term that training adds to the loss."""

    strength: float = 1e-4


@dataclass(frozen=True)
class HessianSettings(Settings):
    """``samples`` random signs for each batch, drawn from ``seed``."""

    samples: Annotated[int, whole(1)] = 1
    seed: int = 0


_CHANNELS: tuple[SparsityType, ...] = ("structured",)
_PLAIN = SparserRule(options=())

SPARSER_RULES = PlugIns(
    "pruning criterion",
    SparserRule,
    {
        "l0norm": SparserRule(
            spellings=("l0", "l0_norm"),
            types=("structured", "block"),
            options=L0NormSettings,
            because="it counts elements, so a single one always scores 0 or 1",
        ),
        "l1norm": SparserRule(spellings=("l1", "l1_norm", "magnitude"), options=()),
        "l2norm": SparserRule(spellings=("l2", "l2_norm"), options=()),
        "lamp": _PLAIN,
        "fpgm": SparserRule(types=_CHANNELS, options=(), because="it compares filters with each other"),
        "random": SparserRule(options=RandomSettings),
        "slimming": SparserRule(
            spellings=("bn_scale", "network_slimming"),
            types=_CHANNELS,
            options=SlimmingSettings,
            because="it reads the scale that a norm gives to a channel",
        ),
        "activation_norm": SparserRule(spellings=("wanda",), options=()),
        "hrank": SparserRule(
            spellings=("h_rank",),
            types=_CHANNELS,
            options=(),
            because="it needs the rank of a channel's feature map",
        ),
        "taylor": SparserRule(spellings=("taylor1",), options=()),
        "taylor2": _PLAIN,
        "fisher": _PLAIN,
        "gradient_weight": SparserRule(spellings=("snip", "gradient_x_weight"), options=()),
        "hessian": SparserRule(spellings=("obd", "hessian_diagonal"), options=HessianSettings),
    },
)
