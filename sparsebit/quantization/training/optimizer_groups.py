"""Parameters of a quantized model in groups for an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from sparsebit.quantization.quant_model import QuantModel


def parameter_groups(
    qmodel: QuantModel, lr: float, *, quantizer_lr: float | None = None, weight_decay: float = 0.0
) -> list[dict[str, Any]]:
    """Groups for an optimizer: weights; biases and norms, which do not decay; what quantizers learn.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> from sparsebit.quantization import QuantModel, parse_qconfig
        >>> config = parse_qconfig("w4a8", ["W.QUANTIZER.TYPE=lsq", "A.QUANTIZER.TYPE=lsq"])
        >>> qmodel = QuantModel(nn.Sequential(nn.Linear(4, 2)), config, torch.zeros(1, 4))
        >>> [len(group["params"]) for group in parameter_groups(qmodel, 0.1)]
        [1, 1, 2]
    """
    learned = {id(p) for q in qmodel.quantizers.values() for p in q.parameters()}
    weights, small, grids = list[Tensor](), list[Tensor](), list[Tensor]()
    for parameter in qmodel.parameters():
        if parameter.requires_grad:
            kind = grids if id(parameter) in learned else weights if parameter.dim() > 1 else small
            kind.append(parameter)
    groups = [
        {"params": weights, "lr": lr, "weight_decay": weight_decay},
        {"params": small, "lr": lr, "weight_decay": 0.0},
        {"params": grids, "lr": lr if quantizer_lr is None else quantizer_lr, "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
