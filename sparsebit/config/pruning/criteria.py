"""The pruning criteria a config may name: what each can score, and which options it takes.

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


SPARSER_RULES = PlugIns(
    "pruning criterion",
    SparserRule,
    {
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
    },
)

_CHANNELS: tuple[SparsityType, ...] = ("structured",)

for _name in (
    "l1norm",
    "l2norm",
    "fisher",
    "taylor",
    "taylor2",
    "lamp",
    "activation_norm",
    "gradient_weight",
):
    SPARSER_RULES.add(_name, SparserRule(options=()))
for _name, _rule in {
    "l0norm": SparserRule(
        types=("structured", "block"),
        options=L0NormSettings,
        because="it counts elements, so a single one always scores 0 or 1",
    ),
    "random": SparserRule(options=RandomSettings),
    "hessian": SparserRule(options=HessianSettings),
    "slimming": SparserRule(
        types=_CHANNELS,
        options=SlimmingSettings,
        because="it reads the scale that a norm gives to a channel",
    ),
    "hrank": SparserRule(types=_CHANNELS, options=(), because="it needs the rank of a channel's feature map"),
    "fpgm": SparserRule(types=_CHANNELS, options=(), because="it compares filters with each other"),
}.items():
    SPARSER_RULES.add(_name, _rule)
