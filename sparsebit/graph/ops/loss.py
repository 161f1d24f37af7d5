"""Losses, for models that compute theirs inside forward. They stay in float."""

from __future__ import annotations

from torch import nn

from sparsebit.graph.ops.spellings import family

_loss = family("loss", aliases={"log_probs": "input"})
_PLAIN = "input, target, reduction='mean'"
_CLASSES = "input, target, weight=None, ignore_index=-100, reduction='mean'"

OPS = (
    _loss(
        "cross_entropy", f"{_CLASSES}, label_smoothing=0.0", nn.CrossEntropyLoss, "aten::cross_entropy_loss"
    ),
    _loss("nll_loss", _CLASSES, nn.NLLLoss, *(f"aten::nll_loss{kind}" for kind in ("_nd", "_forward", "2d"))),
    _loss("mse_loss", _PLAIN, nn.MSELoss),
    _loss("l1_loss", _PLAIN, nn.L1Loss),
    _loss("smooth_l1_loss", f"{_PLAIN}, beta=1.0", nn.SmoothL1Loss),
    _loss("huber_loss", f"{_PLAIN}, delta=1.0", nn.HuberLoss),
    _loss("binary_cross_entropy", "input, target, weight=None, reduction='mean'", nn.BCELoss),
    _loss(
        "binary_cross_entropy_with_logits",
        "input, target, weight=None, reduction='mean', pos_weight=None",
        nn.BCEWithLogitsLoss,
    ),
    _loss("kl_div", f"{_PLAIN}, log_target=False", nn.KLDivLoss),
    _loss(
        "ctc_loss",
        "input, targets, input_lengths, target_lengths, blank=0, reduction='mean', zero_infinity=False",
        nn.CTCLoss,
    ),
)
