"""Mean intersection over union of label maps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Overlap(NamedTuple):
    mean_iou: float
    pixel_accuracy: float


def mean_iou(predicted: Tensor, labels: Tensor, classes: int) -> Overlap:
    """Intersection over union per class over all pixels together, averaged over the classes.

    Pixels whose label is ``classes`` or more are void and count nowhere. A void *prediction* on a labelled pixel
    misses that pixel's class and adds to no other. A class in neither map is left out of the average.

    Args:
        predicted: integers, any shape.
        labels: integers, the same shape.
        classes: how many classes count: 0 to ``classes - 1``.
    """
    known = labels < classes
    truth, guess = labels[known].long(), predicted[known].long().clamp(max=classes)
    pairs = torch.bincount(truth * (classes + 1) + guess, minlength=classes * (classes + 1))
    table = pairs.reshape(classes, classes + 1).double()  # [true class, predicted class or void]
    hits = table[:, :classes].diagonal()
    union = table.sum(1) + table[:, :classes].sum(0) - hits
    present = union > 0
    return Overlap(float((hits[present] / union[present]).mean()), float(hits.sum() / table.sum()))
