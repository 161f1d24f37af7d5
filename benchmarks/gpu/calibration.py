"""Calibration on the GPU: does an observer make the host wait for the device in every batch?"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import sparsebit
from sparsebit.quantization import OBSERVERS
from tests.zoo import ZOO

ROOT = Path(__file__).resolve().parents[2]


def measure(batches: int = 6) -> Iterator[dict[str, Any]]:
    """Waits in each batch, as torch's own debug mode sees them, and milliseconds, for each observer."""
    net = ZOO["cifar_resnet20"].make().cuda()
    x = torch.randn(64, 3, 32, 32, device="cuda")
    for turn, observer in enumerate(["minmax", *sorted(OBSERVERS)]):  # the first turn loads kernels
        waits = {}
        for count in (batches, 2 * batches):
            config = {
                "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": "uniform", "BIT": 8}},
                "A": {
                    "QSCHEME": "per-tensor-affine",
                    "QUANTIZER": {"TYPE": "uniform", "BIT": 8},
                    "OBSERVER": {"TYPE": observer},
                },
            }
            model = sparsebit.QuantModel(net, config, example_inputs=(x[:2],))
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                torch.cuda.synchronize()
                start = time.perf_counter()
                torch.cuda.set_sync_debug_mode("warn")
                try:
                    model.calibrate([x] * count, progress=False)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                torch.cuda.synchronize()
                seconds = time.perf_counter() - start
            waiting = [w for w in seen if "synchroniz" in str(w.message)]
            places = [f"{os.path.relpath(w.filename, ROOT)}:{w.lineno}" for w in waiting]
            waits[count] = len(places), seconds, places
        if not turn:
            continue
        (few, short, _), (many, long, places) = waits[batches], waits[2 * batches]
        counted: dict[str, int] = {}
        for place in places:
            counted[place] = counted.get(place, 0) + 1
        yield {
            "observer": observer,
            "waits_per_batch": (many - few) / batches,
            "waits_outside": 2 * few - many,
            "ms_per_batch": 1000 * (long - short) / batches,
            "places": dict(sorted(counted.items(), key=lambda item: -item[1])[:4]),
        }
