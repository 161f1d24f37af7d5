"""Losses, for models that compute theirs inside forward. They stay in float."""

from __future__ import annotations

from torch import nn

from sparsebit.graph.ops.spec import OpSpec
from sparsebit.graph.ops.spellings import named


def _loss(
    name: str, module: type[nn.Module], *targets: object, signature: str = "input, target, reduction='mean'"
) -> OpSpec:
    return OpSpec(
        name=name,
        targets=named(name, module, *targets),
        family="loss",
        signature=signature,
        aliases={"log_probs": "input"},
    )


OPS = (
    _loss(
        *("cross_entropy", nn.CrossEntropyLoss, "aten::cross_entropy_loss"),
        signature="input, target, weight=None, ignore_index=-100, reduction='mean', label_smoothing=0.0",
    ),
    _loss(
        *("nll_loss", nn.NLLLoss, "aten::nll_loss_nd", "aten::nll_loss_forward", "aten::nll_loss2d"),
        signature="input, target, weight=None, ignore_index=-100, reduction='mean'",
    ),
    _loss("mse_loss", nn.MSELoss),
    _loss("l1_loss", nn.L1Loss),
    _loss("smooth_l1_loss", nn.SmoothL1Loss, signature="input, target, reduction='mean', beta=1.0"),
    _loss("huber_loss", nn.HuberLoss, signature="input, target, reduction='mean', delta=1.0"),
    _loss("binary_cross_entropy", nn.BCELoss, signature="input, target, weight=None, reduction='mean'"),
    _loss(
        *("binary_cross_entropy_with_logits", nn.BCEWithLogitsLoss),
        signature="input, target, weight=None, reduction='mean', pos_weight=None",
    ),
    _loss("kl_div", nn.KLDivLoss, signature="input, target, reduction='mean', log_target=False"),
    _loss(
        *("ctc_loss", nn.CTCLoss),
        signature="input, targets, input_lengths, target_lengths, blank=0, reduction='mean',"
        " zero_infinity=False",
    ),
)
