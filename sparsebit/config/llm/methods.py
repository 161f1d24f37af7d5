"""The methods that a language-model config may name, when each acts, and their options.

The methods themselves live above this package. They inherit the settings declared here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from sparsebit.config.engine.plugins import PlugInRule, PlugIns, Settings
from sparsebit.config.engine.steps import steps_reader
from sparsebit.config.engine.values import NOT_NEGATIVE, PART, POSITIVE, whole
from sparsebit.errors import ConfigError

Moment = Literal["before", "solve", "after"]

Count = Annotated[int, whole(1)]
Part = Annotated[float, PART]
Positive = Annotated[float, POSITIVE]
NotNegative = Annotated[float, NOT_NEGATIVE]


@dataclass(frozen=True, kw_only=True)
class RtnSettings(Settings):
    """Round to nearest: ``steps`` ranges are tried for each group; 1 takes the full range of the weights."""

    steps: Count = 1


@dataclass(frozen=True, kw_only=True)
class WandaSettings(Settings):
    """W.SPARSITY by magnitude of the weight times norm of its input; the kept weights are rounded as by rtn."""

    steps: Count = 24


@dataclass(frozen=True, kw_only=True)
class HqqSettings(Settings):
    """HQQ: scales and zero points that fit most weights well, found without data.

    Attributes:
        rounds: how often values, outliers and grid are updated in turn.
        norm: the exponent of the error that is minimized; below 1, outliers count less.
        beta: how much of an error counts as an outlier at first; more means less.
        growth: the factor by which beta grows in each round.
    """

    rounds: Count = 20
    norm: Positive = 0.7
    beta: Positive = 10.0
    growth: Positive = 1.01


@dataclass(frozen=True, kw_only=True)
class GptqSettings(Settings):
    """GPTQ with a searched grid that is fixed before the rounding; with W.SPARSITY it is SparseGPT.

    Attributes:
        act_order: round the input channels with the largest inputs first. Groups stay those of the original order.
        damping: added to the diagonal of H, as a fraction of its mean; multiplied by ten if H has no inverse.
        steps: ranges tried per group.
        follow: how far the target moves to correct the error of earlier layers, from 0 to 1.
        follow_damping: the damping of that move.
    """

    act_order: bool = True
    damping: Positive = 0.03
    steps: Count = 24
    follow: Part = 0.5
    follow_damping: Positive = 0.05


@dataclass(frozen=True, kw_only=True)
class AwqSettings(Settings):
    """AWQ's scales, folded into the norm or the linear layer before; ``steps`` exponents are tried."""

    steps: Count = 20


@dataclass(frozen=True, kw_only=True)
class SmoothSettings(Settings):
    """``alpha`` says how much of the difficulty moves from activations to weights; 0.5 splits it evenly."""

    alpha: Part = 0.5


@dataclass(frozen=True, kw_only=True)
class RotateSettings(Settings):
    """QuaRot's rotations that fold into weights: of the residual stream, and with ``heads`` of attention's values."""

    heads: bool = True
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class TuneSettings(Settings):
    """Learn scales, norms and rounding of a solved block, so that its output matches that of the float block.

    Attributes:
        steps: mini-batches of calibration data per block.
        scale_lr: learning rate of the scales, relative to each scale; 0 leaves them.
        norm_lr: learning rate of norm weights and biases, relative to their mean size; 0 leaves them.
        weight_lr: learning rate of the rounding, in steps of the grid; 0 leaves the quantized values.
        zero_points: learn zero points too, where the grid has them; their learning rate is ``weight_lr``.
        follow: 1 learns the output of the float model, 0 that of the float block on the quantized model's inputs.
        seed: of the order of the mini-batches.
    """

    steps: Count = 128
    scale_lr: NotNegative = 1e-3
    norm_lr: NotNegative = 1e-3
    weight_lr: NotNegative = 1e-2
    zero_points: bool = False
    follow: Part = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.scale_lr or self.norm_lr or self.weight_lr):
            raise ConfigError(
                "tune: there is nothing to learn", expected="a learning rate above 0", got="three of 0"
            )


@dataclass(frozen=True, kw_only=True)
class SignRoundSettings(Settings):
    """AutoRound's rounding: every weight goes up or down, learned with the sign of its gradient.

    Attributes:
        steps: mini-batches of calibration data per block.
        reach: how far a weight may move from its value, in steps of the grid; 0.5 chooses between its neighbours.
        scale_reach: how far a scale may move, as a fraction of it; 0 leaves it unchanged.
        follow: 1 learns the output of the float model, 0 that of the float block on the quantized model's inputs.
        seed: of the order of the mini-batches.
    """

    steps: Count = 128
    reach: Positive = 0.5
    scale_reach: NotNegative = 0.1
    follow: Part = 1.0
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class MethodRule(PlugInRule):
    """``moment``: before the weights of a block are solved, solving them, or after that."""

    moment: Moment = "solve"


METHOD_RULES = PlugIns(
    "method",
    MethodRule,
    {
        "rotate": MethodRule(moment="before", spellings=("quarot",), options=RotateSettings),
        "awq": MethodRule(moment="before", options=AwqSettings),
        "smoothquant": MethodRule(moment="before", options=SmoothSettings),
        "rtn": MethodRule(spellings=("nearest", "round_to_nearest", "magnitude"), options=RtnSettings),
        "gptq": MethodRule(spellings=("sparsegpt",), options=GptqSettings),
        "hqq": MethodRule(options=HqqSettings),
        "wanda": MethodRule(options=WandaSettings),
        "tune": MethodRule(moment="after", spellings=("efficientqat",), options=TuneSettings),
        "signround": MethodRule(moment="after", spellings=("autoround",), options=SignRoundSettings),
    },
)
PRUNING_NAMES = frozenset({"wanda", "sparsegpt", "magnitude"})  # naming one of these asks for pruning
METHOD = steps_reader(METHOD_RULES, "{gptq: {damping: 0.1}}")
