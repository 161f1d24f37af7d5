"""CIFAR-10 (Krizhevsky, 2009), 10,000 test images, with the ResNets of He et al. (2015)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.tasks.batches import image_calls, spread
from benchmarks.tasks.data import find_file
from benchmarks.tasks.decode import read_array
from benchmarks.tasks.metrics.accuracy import top_k
from benchmarks.tasks.task import Call, Scores, Task
from tests.zoo.nets.cifar_resnet import CifarResNet

MEAN = torch.tensor([0.485, 0.456, 0.406])
STD = torch.tensor([0.229, 0.224, 0.225])


def normalize(images: Tensor) -> Tensor:
    """uint8 [N, 32, 32, 3] to float [N, 3, 32, 32]."""
    return ((images / 255 - MEAN) / STD).permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True, kw_only=True)
class Cifar10(Task):
    """Top-1 accuracy; calibrated on 2,000 training images."""

    blocks: int  # per stage: the network has 6 * blocks + 2 layers

    def network(self) -> nn.Module:
        return CifarResNet(self.blocks)

    def calibration_calls(self, count: int, batch: int) -> list[Callable[[], Call]]:
        images = read_array(find_file(self.folder, "cifar10_calib.npz"), "images")
        return image_calls(images[list(spread(range(len(images)), count))], normalize, batch)

    def test_calls(self, limit: int | None, batch: int) -> list[Callable[[], Call]]:
        images = read_array(find_file(self.folder, "cifar10_test.npz"), "images", limit)
        return image_calls(images, normalize, batch)

    def keep(self, output: Any) -> Tensor:
        return torch.as_tensor(output).float().cpu()

    def score(self, kept: Tensor, limit: int | None) -> Scores:
        labels = read_array(find_file(self.folder, "cifar10_test.npz"), "labels", limit)
        return Scores({self.metric: 100 * top_k(kept, labels, 1)}, kept.argmax(1))
