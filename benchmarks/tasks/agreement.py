"""How much two predictors say the same, sample by sample: finer than the difference of their metrics."""

from __future__ import annotations

import torch.nn.functional as F

from benchmarks.tasks.task import Result


def agreement(a: Result, b: Result) -> float:
    """Share of equal predictions where they are integers, mean cosine over samples where they are floats.

    A metric hides changes that cancel out; two results agree fully only if every sample was answered alike.
    """
    left, right = a.predictions, b.predictions
    if a.task != b.task or left.shape != right.shape:
        raise ValueError(
            f"only results over the same samples of one task can be compared: {a.task} {tuple(left.shape)} "
            f"and {b.task} {tuple(right.shape)}"
        )
    if left.is_floating_point():
        return float(F.cosine_similarity(left.flatten(1).double(), right.flatten(1).double()).mean())
    return float((left == right).double().mean())
