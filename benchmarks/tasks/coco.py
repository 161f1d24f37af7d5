"""Object detection: 128 COCO val2017 images (Lin et al., 2014) with FastestDet."""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn

from benchmarks.tasks.batches import image_calls, spread
from benchmarks.tasks.data import find_file
from benchmarks.tasks.decode import list_members, read_images
from benchmarks.tasks.metrics.average_precision import Detections, Objects, average_precision
from benchmarks.tasks.metrics.boxes import suppress
from benchmarks.tasks.progress import track
from benchmarks.tasks.task import Call, Scores, Task
from tests.zoo.nets.fastestdet import FastestDet

SIDE = 352
LEAST_SCORE = 0.001
MOST_OVERLAP = 0.45


class Picture(NamedTuple):
    """One annotated image."""

    file_name: str
    width: int
    height: int
    objects: Objects


def normalize(images: Tensor) -> Tensor:
    """uint8 RGB [N, 352, 352, 3] to float BGR [N, 3, 352, 352] from 0 to 1."""
    return (images.flip(3) / 255).permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True, kw_only=True)
class Coco(Task):
    """Average precision at IoU 0.5. There is no calibration set of its own: ImageNet's photographs stand in.

    A sample's prediction, for the agreement of two models, is its map of class scores; boxes are not in it.
    """

    def network(self) -> nn.Module:
        return FastestDet()

    def calibration_calls(self, count: int, batch: int) -> list[Callable[[], Call]]:
        path = find_file(self.folder, "imagenet_calib256.zip")
        images = read_images(path, spread(list_members(path), count), (SIDE, SIDE))
        return image_calls(images, normalize, batch)

    def test_calls(self, limit: int | None, batch: int) -> list[Callable[[], Call]]:
        path = find_file(self.folder, "coco_val128.zip")
        members = tuple(picture.file_name for picture in read_pictures(path)[:limit])
        return image_calls(read_images(path, members, (SIDE, SIDE)), normalize, batch)

    def keep(self, output: Any) -> Tensor:
        return torch.as_tensor(output).float().cpu()

    def score(self, kept: Tensor, limit: int | None) -> Scores:
        pictures = read_pictures(find_file(self.folder, "coco_val128.zip"))[:limit]
        pairs = list(zip(kept, pictures, strict=True))
        found = [decode(o, p.width, p.height) for o, p in track(pairs, f"{self.name}: scoring")]
        result = average_precision(found, [picture.objects for picture in pictures])
        return Scores({self.metric: 100 * result.ap50, "AP %": 100 * result.ap}, class_scores(kept))


def class_scores(output: Tensor) -> Tensor:
    """Score of every class in every cell, [N, 80, 22, 22], of outputs [N, 85, 22, 22]."""
    return output[:, :1] ** 0.6 * output[:, 5:] ** 0.4


def decode(output: Tensor, width: int, height: int) -> Detections:
    """The boxes in one output map [85, rows, columns]: one a cell, in pixels of an image of the given size."""
    rows, columns = output.shape[1:]
    scores, classes = class_scores(output[None])[0].max(0)
    x = (output[1].tanh() + torch.arange(columns)) / columns
    y = (output[2].tanh() + torch.arange(rows)[:, None]) / rows
    half_width, half_height = output[3].sigmoid() / 2, output[4].sigmoid() / 2
    corners = torch.stack([x - half_width, y - half_height, x + half_width, y + half_height], -1)
    boxes = (corners.double() * torch.tensor([width, height, width, height])).reshape(-1, 4).numpy()
    flat = Detections(boxes, scores.double().flatten().numpy(), classes.flatten().numpy())
    enough = flat.scores > LEAST_SCORE
    flat = Detections(flat.boxes[enough], flat.scores[enough], flat.classes[enough])
    best = suppress(flat.boxes, flat.scores, flat.classes, MOST_OVERLAP)
    return Detections(flat.boxes[best], flat.scores[best], flat.classes[best])


@functools.lru_cache(maxsize=2)
def read_pictures(path: Path) -> tuple[Picture, ...]:
    """What the archive's ``instances.json`` says, in its order."""
    with zipfile.ZipFile(path) as archive:
        content = json.loads(archive.read("instances.json"))
    of_image: dict[int, list[dict[str, Any]]] = {image["id"]: [] for image in content["images"]}
    for annotation in content["annotations"]:
        of_image[annotation["image_id"]].append(annotation)
    return tuple(
        Picture(image["file_name"], image["width"], image["height"], _objects(of_image[image["id"]]))
        for image in content["images"]
    )


def _objects(annotations: list[dict[str, Any]]) -> Objects:
    boxes = numpy.array([a["bbox"] for a in annotations], dtype=numpy.float64).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]  # stored as left, top, width, height
    return Objects(
        boxes,
        numpy.array([a["category_id"] for a in annotations], dtype=numpy.int64),
        numpy.array([a["iscrowd"] for a in annotations], dtype=bool),
    )
