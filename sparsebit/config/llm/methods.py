"""The methods that a language-model config may name, and their options.

The methods themselves live above this package. They inherit the settings declared here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sparsebit.config.engine.plugins import PlugInRule, PlugIns, Settings
from sparsebit.config.engine.values import PART, POSITIVE, whole


@dataclass(frozen=True, kw_only=True)
class RtnSettings(Settings):
    """Round to nearest: ``steps`` ranges are tried for each group; 1 takes the whole range of the weights."""

    steps: Annotated[int, whole(1)] = 1


@dataclass(frozen=True, kw_only=True)
class GptqSettings(Settings):
    """GPTQ with a searched grid that is fixed before the rounding.

    Attributes:
        act_order: round the most strongly driven input channels first. Groups stay those of the original order.
        damping: what is added to the diagonal of H, as a part of its mean; raised tenfold where H has no inverse.
        steps: ranges tried per group.
        follow: how far the target moves towards what corrects the error of earlier layers, from 0 to 1.
        follow_damping: the damping of that move.
    """

    act_order: bool = True
    damping: Annotated[float, POSITIVE] = 0.01
    steps: Annotated[int, whole(1)] = 24
    follow: Annotated[float, PART] = 0.5
    follow_damping: Annotated[float, POSITIVE] = 0.05


METHOD_RULES = PlugIns("method", PlugInRule, {"nearest": "rtn", "round_to_nearest": "rtn"})
for _name, _settings in {"rtn": RtnSettings, "gptq": GptqSettings}.items():
    METHOD_RULES.add(_name, PlugInRule(options=_settings))
