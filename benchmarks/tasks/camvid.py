"""Street scenes: 78 CamVid test frames (Brostow et al., 2009) with ESPNet (Mehta et al., 2018)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.tasks.batches import image_calls, spread
from benchmarks.tasks.data import find_file
from benchmarks.tasks.decode import list_members, read_images
from benchmarks.tasks.metrics.mean_iou import mean_iou
from benchmarks.tasks.task import Call, Scores, Task
from tests.zoo.nets.espnet import ESPNet

CLASSES = 11  # label 11 is void
MEAN = torch.tensor([109.776, 107.813, 104.422])  # blue, green, red
STD = torch.tensor([72.188, 72.789, 70.005])


def normalize(images: Tensor) -> Tensor:
    """uint8 RGB [N, H, W, 3] to float BGR [N, 3, H, W]."""
    return ((images.flip(3) - MEAN) / STD / 255).permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True, kw_only=True)
class CamVid(Task):
    """Mean intersection over union of 11 classes; calibrated on the 31 training frames there are."""

    def network(self) -> nn.Module:
        return ESPNet()

    def calibration_calls(self, count: int, batch: int) -> list[Callable[[], Call]]:
        path = find_file(self.folder, "camvid_calib32.zip")
        frames = spread(list_members(path, "images/"), count)
        return image_calls(read_images(path, frames), normalize, batch)

    def test_calls(self, limit: int | None, batch: int) -> list[Callable[[], Call]]:
        path = find_file(self.folder, "camvid_test78.zip")
        return image_calls(read_images(path, list_members(path, "images/")[:limit]), normalize, batch)

    def keep(self, output: Any) -> Tensor:
        return torch.as_tensor(output).argmax(1).to(torch.uint8).cpu()

    def score(self, kept: Tensor, limit: int | None) -> Scores:
        path = find_file(self.folder, "camvid_test78.zip")
        labels = read_images(path, list_members(path, "labels/", ".png")[:limit])
        overlap = mean_iou(kept, labels, CLASSES)
        metrics = {self.metric: 100 * overlap.mean_iou, "pixels %": 100 * overlap.pixel_accuracy}
        return Scores(metrics, kept)
