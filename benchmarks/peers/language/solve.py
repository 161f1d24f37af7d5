"""What every peer's script does around the lines a user writes: time them, and hand over the weights that came out.

This file is imported inside each peer's own environment, so it needs only torch and safetensors.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import resource
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


class Outcome(NamedTuple):
    """What a quantized model computes with, and what it takes to store."""

    weights: dict[str, Tensor]  # by the names of the float model, as the numbers that are multiplied with
    stored: (
        int  # bytes of the quantized layers: values, scales, zero points, as this peer holds or saves them
    )


def solve(
    package: str,
    quantize: Callable[[str, Tensor, int], Any],
    outcome: Callable[[Any], Outcome],
) -> None:
    """Run one peer from the command line: quantize, write the weights, print one line of JSON.

    Args:
        package: of which the version is reported.
        quantize: the lines a user writes, from the float folder, token ids [samples, length] and bits to a model.
        outcome: what ``quantize`` returned, as plain weights.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="of the float model")
    parser.add_argument("tokens", help="safetensors with the calibration ids")
    parser.add_argument("bits", type=int)
    parser.add_argument("out", help="where the weights are written")
    options = parser.parse_args()
    torch.manual_seed(0)
    samples = load_file(options.tokens)["calibration"]
    start, processor = time.perf_counter(), processor_seconds()
    made = quantize(options.folder, samples, options.bits)
    seconds, processor = time.perf_counter() - start, processor_seconds() - processor
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    with torch.no_grad():
        found = outcome(made)
    weights = {name: one.detach().float().contiguous() for name, one in found.weights.items()}
    save_file(weights, options.out)
    result = {
        "version": importlib.metadata.version(package),
        "cpu_seconds": round(processor, 1),
        "seconds": round(seconds, 1),
        "peak_mb": round(peak),
        "stored_bytes": found.stored,
    }
    print(json.dumps(result))


def processor_seconds() -> float:
    """Of this process and of those it waited for."""
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in spent)


def nbytes(*tensors: Tensor | None) -> int:
    """Bytes of those that are there."""
    return sum(one.numel() * one.element_size() for one in tensors if one is not None)
