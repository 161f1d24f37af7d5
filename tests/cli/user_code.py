"""What a user has beside the command line: a model, data, a metric. Written to a folder by the tests."""

from __future__ import annotations

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        )
        self.head = nn.Linear(width, 4)

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3)))


def make():
    torch.manual_seed(0)
    return Net()


def wide():
    return Net(32)


def needs_arguments(width):
    return Net(width)


def broken():
    raise ValueError("no such dataset")


def not_a_model():
    return 42


ready = make()


def batches():
    chance = torch.Generator().manual_seed(1)
    for _ in range(3):
        yield torch.randn(8, 3, 8, 8, generator=chance), torch.randint(4, (8,), generator=chance)


started = batches()
unlabelled = [torch.zeros(2, 3, 8, 8)]
empty = []
words = ["no", "batches"]


def breaks_off():
    yield torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    raise OSError("the disk is gone")


def changes_shape():
    yield torch.zeros(2, 3, 8, 8), torch.zeros(2, dtype=torch.int64)
    yield torch.zeros(2, 5, 8, 8), torch.zeros(2, dtype=torch.int64)


def first_logit(outputs, labels):
    return outputs[:, 0].mean()


def no_number(outputs, labels):
    return "good"


def not_a_number(outputs, labels):
    return float("nan")


foreign_labels = [(torch.zeros(2, 3, 8, 8), torch.full((2,), 9))]
too_few_labels = [(torch.zeros(2, 3, 8, 8), torch.zeros(1, dtype=torch.int64))]


def leaves():
    raise SystemExit(7)


def talkative():
    print("hello from the factory")
    return make()


def broken_training(model):
    return 1 / 0
"""
