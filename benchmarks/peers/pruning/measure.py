"""One pruning tool on one model with one criterion, inside the tool's environment."""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch
from torch import nn

from benchmarks.peers.answer import print_answer
from benchmarks.peers.peak import peak_mb, reset_peak
from benchmarks.pruning.resnet56.finetune import refresh_statistics
from benchmarks.tasks import Task
from benchmarks.tasks.cifar10 import normalize
from benchmarks.tasks.data import find_file
from benchmarks.tasks.decode import read_array

BATCH, STATISTICS = 32, 1000  # images: at once, and for new statistics of batch norm
SHARE = 0.5  # of multiply-accumulates to remove


def measure(script: Any, task: Task, options: argparse.Namespace) -> dict[str, Any]:
    """All figures of one run, except the latency of its file."""
    path = find_file(task.folder, "cifar10_train10k.npz")
    images, labels = normalize(read_array(path, "images")), read_array(path, "labels").long()
    image_batches = list(images[: options.count].split(BATCH))
    label_batches = list(labels[: options.count].split(BATCH))
    dense, model = task.model(), task.model()
    before = reset_peak()
    start = time.process_time()
    small = script.prune(model, image_batches, label_batches, options.setting, SHARE).eval()
    found: dict[str, Any] = {"prune_seconds": time.process_time() - start, "memory_mb": peak_mb() - before}
    found["macs_left"] = 100 * count_macs(small, images[:1]) / count_macs(dense, images[:1])
    found["params_left"] = 100 * count_parameters(small) / count_parameters(dense)
    found["one_shot"] = task.evaluate(small, options.limit).metric
    refresh_statistics(small, images[:STATISTICS])
    found["new_statistics"] = task.evaluate(small.eval(), options.limit).metric
    file = options.folder / "pruned.onnx"
    torch.onnx.export(
        small,
        (images[:2],),
        str(file),
        dynamo=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes={"x": {0: "batch"}},
    )
    return found | {"file_mb": file.stat().st_size / 1e6, "file": str(file)}


def count_parameters(model: nn.Module) -> int:
    """Numbers in all parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def count_macs(model: nn.Module, x: torch.Tensor) -> int:
    """Multiply-accumulates of the convolutions and linear layers, for every tool counted the same way."""
    total = 0

    def count(module: nn.Module, args: Any, output: torch.Tensor) -> None:
        nonlocal total
        weight: Any = module.weight
        places = output[0, 0].numel() if isinstance(module, nn.Conv2d) else 1
        total += weight.numel() * places

    layers = [module for module in model.modules() if isinstance(module, (nn.Conv2d, nn.Linear))]
    handles = [layer.register_forward_hook(count) for layer in layers]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return total


if __name__ == "__main__":
    print_answer("pruning", measure, ("count", "limit"))
