"""Real images that come with scikit-learn: 1797 handwritten digits of 8×8 pixels."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from sparsebit.errors import missing_package

Batch = tuple[Tensor, Tensor]
TRAINING = 1200  # the rest is for testing
BATCH = 50


@cache
def digits() -> Batch:
    """Images [1797, 1, 8, 8] with values from 0 to 1, and their labels, in an order that mixes the writers."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise missing_package("scikit-learn", "the demo", extra="demo") from None
    data = load_digits()
    order = torch.randperm(len(data.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(data.images, dtype=torch.float32)[order].unsqueeze(1) / 16
    return images, torch.tensor(data.target, dtype=torch.int64)[order]


def training_data() -> list[Batch]:
    """The batches to train and calibrate with."""
    images, labels = digits()
    return list(zip(images[:TRAINING].split(BATCH), labels[:TRAINING].split(BATCH), strict=True))


def held_out_data() -> list[Batch]:
    """The batches to measure with; no other step sees them."""
    images, labels = digits()
    return list(zip(images[TRAINING:].split(BATCH), labels[TRAINING:].split(BATCH), strict=True))
