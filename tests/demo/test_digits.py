"""The demo's images: none is both trained on and tested with."""

from __future__ import annotations

import torch

from sparsebit.demo import held_out_data, training_data


def test_no_test_image_is_trained_on() -> None:
    seen, kept = (torch.cat([images for images, _ in data]) for data in (training_data(), held_out_data()))
    assert len(seen) + len(kept) == 1797
    assert seen.shape[1:] == (1, 8, 8) and float(seen.min()) >= 0 and float(seen.max()) == 1
