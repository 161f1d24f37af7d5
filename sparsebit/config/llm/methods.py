"""The methods that a language-model config may name, and their options.

The methods themselves live above this package. They inherit the settings declared here.
"""

from __future__ import annotations

from dataclasses import dataclass

from sparsebit.config.engine.options import require
from sparsebit.config.engine.plugins import PlugInRule, PlugIns


@dataclass(frozen=True, kw_only=True)
class RtnSettings:
    """Round to nearest: ``steps`` ranges are tried for each group; 1 takes the whole range of the weights."""

    steps: int = 1

    def __post_init__(self) -> None:
        require("rtn", self.steps >= 1, "at least 1", steps=self.steps)


@dataclass(frozen=True, kw_only=True)
class GptqSettings:
    """GPTQ with a searched grid that is fixed before the rounding.

    Attributes:
        act_order: round the most strongly driven input channels first. Groups stay those of the original order.
        damping: what is added to the diagonal of H, as a part of its mean; raised tenfold where H has no inverse.
        steps: ranges tried per group.
        follow: how far the target moves towards what corrects the error of earlier layers, from 0 to 1.
        follow_damping: the damping of that move.
    """

    act_order: bool = True
    damping: float = 0.01
    steps: int = 24
    follow: float = 0.5
    follow_damping: float = 0.05

    def __post_init__(self) -> None:
        require("gptq", self.steps >= 1, "at least 1", steps=self.steps)
        require("gptq", 0 <= self.follow <= 1, "from 0 to 1", follow=self.follow)
        require("gptq", self.damping > 0, "above 0", damping=self.damping)
        require("gptq", self.follow_damping > 0, "above 0", follow_damping=self.follow_damping)


METHOD_RULES = PlugIns("method", PlugInRule, {"nearest": "rtn", "round_to_nearest": "rtn"})
for _name, _settings in {"rtn": RtnSettings, "gptq": GptqSettings}.items():
    METHOD_RULES.add(_name, PlugInRule(options=_settings))
