"""1,000 ImageNet validation images, one per class, with EfficientNet-Lite0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.tasks.batches import image_calls, spread
from benchmarks.tasks.data import find_file
from benchmarks.tasks.decode import list_members, read_images
from benchmarks.tasks.metrics.accuracy import top_k
from benchmarks.tasks.task import Call, Scores, Task
from tests.zoo.nets.efficientnet_lite import EfficientNetLite0


def normalize(images: Tensor) -> Tensor:
    """uint8 [N, 256, 256, 3] to float [N, 3, 224, 224]: the centre, as the network was trained."""
    return ((images[:, 16:240, 16:240].float() - 127) / 128).permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True, kw_only=True)
class ImageNet(Task):
    """Top-1 accuracy; calibrated on 256 other images of 256 classes."""

    def network(self) -> nn.Module:
        return EfficientNetLite0()

    def calibration_calls(self, count: int, batch: int) -> list[Callable[[], Call]]:
        path = find_file(self.folder, "imagenet_calib256.zip")
        return image_calls(read_images(path, spread(list_members(path), count)), normalize, batch)

    def test_calls(self, limit: int | None, batch: int) -> list[Callable[[], Call]]:
        path = find_file(self.folder, "imagenet_val1000.zip")
        return image_calls(read_images(path, list_members(path)[:limit]), normalize, batch)

    def keep(self, output: Any) -> Tensor:
        return torch.as_tensor(output).float().cpu()

    def score(self, kept: Tensor, limit: int | None) -> Scores:
        members = list_members(find_file(self.folder, "imagenet_val1000.zip"))[:limit]
        labels = torch.tensor([int(PurePath(member).name[:4]) for member in members])
        top1, top5 = top_k(kept, labels, 1), top_k(kept, labels, 5)
        return Scores({self.metric: 100 * top1, "top-5 %": 100 * top5}, kept.argmax(1))
