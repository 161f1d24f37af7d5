"""Top-k accuracy."""

from __future__ import annotations

from torch import Tensor


def top_k(logits: Tensor, labels: Tensor, k: int) -> float:
    """Share of samples whose label [N] is among the ``k`` largest of its logits [N, classes]."""
    best = logits.argmax(1, keepdim=True) if k == 1 else logits.topk(k, dim=1).indices
    return float((best == labels.long()[:, None]).any(1).double().mean())
