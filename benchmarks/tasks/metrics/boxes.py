"""Boxes as (left, top, right, bottom): overlap and the removal of double detections."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

Floats = NDArray[numpy.float64]
Integers = NDArray[numpy.int64]


def box_area(boxes: Floats) -> Floats:
    """Areas [N] of boxes [N, 4]."""
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def box_overlap(a: Floats, b: Floats) -> Floats:
    """Areas that boxes [N, 4] and [M, 4] have in common, [N, M]."""
    sides = numpy.minimum(a[:, None, 2:], b[None, :, 2:]) - numpy.maximum(a[:, None, :2], b[None, :, :2])
    common: Floats = sides.clip(min=0).prod(axis=2)
    return common


def box_iou(a: Floats, b: Floats) -> Floats:
    """Intersection over union of boxes [N, 4] and [M, 4], [N, M]."""
    common = box_overlap(a, b)
    return common / (box_area(a)[:, None] + box_area(b)[None] - common)


def suppress(boxes: Floats, scores: Floats, classes: Integers, iou: float) -> Integers:
    """Indices of the boxes to keep, best score first: none overlaps a better one of its class by more than ``iou``."""
    order = numpy.argsort(-scores, kind="stable")
    boxes, classes = boxes[order], classes[order]
    rivals = (box_iou(boxes, boxes) > iou) & (classes[:, None] == classes[None])
    alive = numpy.ones(len(order), dtype=bool)
    for index in range(len(order)):
        if alive[index]:
            alive[index + 1 :] &= ~rivals[index, index + 1 :]
    return order[alive]
