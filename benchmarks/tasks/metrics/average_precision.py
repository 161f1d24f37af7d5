"""Average precision of detections by the rules of COCO (Lin et al., 2014), over boxes of all sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy

from benchmarks.tasks.metrics.boxes import Floats, Integers, box_area, box_overlap

IOU_THRESHOLDS = numpy.linspace(0.5, 0.95, 10)
RECALLS = numpy.linspace(0, 1, 101)
MOST_DETECTIONS = 100  # of one class in one image


class Detections(NamedTuple):
    """What a detector found in one image."""

    boxes: Floats  # [N, 4]: left, top, right, bottom
    scores: Floats  # [N]
    classes: Integers  # [N]


class Objects(NamedTuple):
    """What is in one image."""

    boxes: Floats  # [M, 4]: left, top, right, bottom
    classes: Integers  # [M]
    # [M]: a region of many, neither missed nor wrong.
    crowd: numpy.ndarray[tuple[int], numpy.dtype[numpy.bool_]]


class AveragePrecision(NamedTuple):
    ap: float  # mean over the thresholds 0.50, 0.55 ... 0.95
    ap50: float


class _Matched(NamedTuple):
    """The detections of one class in one image, best first."""

    scores: Floats  # [N]
    hit: numpy.ndarray[tuple[int, int], numpy.dtype[numpy.bool_]]  # [threshold, N]: found an object
    ignored: numpy.ndarray[tuple[int, int], numpy.dtype[numpy.bool_]]  # [threshold, N]: lies in a crowd


def average_precision(found: Sequence[Detections], present: Sequence[Objects]) -> AveragePrecision:
    """Mean over the classes that are present of the area under precision against recall.

    Precision is read at 101 recalls, after each point is raised to the best precision at any higher recall.
    """
    per_class = []
    for number in sorted({int(c) for objects in present for c in objects.classes[~objects.crowd]}):
        images = [_of_class(d, o, number) for d, o in zip(found, present, strict=True)]
        total = sum(int((~objects.crowd).sum()) for _, objects in images)
        per_class.append(_precision([_match(d, o) for d, o in images], total))
    if not per_class:
        return AveragePrecision(float("nan"), float("nan"))
    mean = numpy.mean(per_class, axis=0)
    return AveragePrecision(float(mean.mean()), float(mean[0]))


def _of_class(found: Detections, present: Objects, number: int) -> tuple[Detections, Objects]:
    mine = numpy.flatnonzero(found.classes == number)
    mine = mine[numpy.argsort(-found.scores[mine], kind="stable")][:MOST_DETECTIONS]
    theirs = present.classes == number
    return (
        Detections(found.boxes[mine], found.scores[mine], found.classes[mine]),
        Objects(present.boxes[theirs], present.classes[theirs], present.crowd[theirs]),
    )


def _match(found: Detections, present: Objects) -> _Matched:
    """Give each detection, best first, the free object it overlaps most, at each threshold.

    Only where none qualifies may it fall into a crowd, which takes any number and of which it need only be inside.
    """
    common = box_overlap(found.boxes, present.boxes)
    size = box_area(found.boxes)[:, None]
    other = numpy.where(present.crowd[None], 0, box_area(present.boxes)[None] - common)
    iou = common / (size + other)
    alone, crowd = iou[:, ~present.crowd], iou[:, present.crowd]
    hit = numpy.zeros((len(IOU_THRESHOLDS), len(found.scores)), dtype=bool)
    ignored = numpy.zeros_like(hit)
    for level, threshold in enumerate(IOU_THRESHOLDS):
        free = numpy.ones(alone.shape[1], dtype=bool)
        for index in range(len(found.scores)):
            candidates = numpy.where(free, alone[index], -1.0)
            # Of equal overlaps the last object wins, as in the reference implementation.
            best = len(candidates) - 1 - int(candidates[::-1].argmax()) if len(candidates) else -1
            if best >= 0 and candidates[best] >= threshold:
                free[best] = False
                hit[level, index] = True
            else:
                ignored[level, index] = bool((crowd[index] >= threshold).any())
    return _Matched(found.scores, hit, ignored)


def _precision(images: Sequence[_Matched], total: int) -> Floats:
    """Mean precision over the recalls, [threshold], of one class with ``total`` objects."""
    scores = numpy.concatenate([image.scores for image in images])
    order = numpy.argsort(-scores, kind="stable")
    hit = numpy.concatenate([image.hit for image in images], axis=1)[:, order]
    ignored = numpy.concatenate([image.ignored for image in images], axis=1)[:, order]
    result = numpy.zeros(len(IOU_THRESHOLDS))
    for level in range(len(IOU_THRESHOLDS)):
        right = numpy.cumsum(hit[level])
        wrong = numpy.cumsum(~hit[level] & ~ignored[level])
        precision = right / numpy.maximum(right + wrong, 1)
        precision = numpy.maximum.accumulate(precision[::-1])[::-1]
        place = numpy.searchsorted(right / total, RECALLS, side="left")
        result[level] = numpy.append(precision, 0.0)[place].mean()
    return result
