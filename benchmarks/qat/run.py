"""What does quantization-aware training reach from the float weights, with 10,000 training images?

ResNet-20 on CIFAR-10, batch norm left in place, the first and last layer at 8 bits, distilled from the float model
by the library's own option. Published on ImageNet, with all of the training data, LSQ matches the float model at W4A4.

Run from the repository root: ``SPARSEBIT_DATA=... python -m benchmarks.qat.run [--device cuda]``
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import track
from torch import Tensor

from benchmarks.environment import describe
from benchmarks.tasks import Task, open_task
from benchmarks.tasks.cifar10 import normalize
from benchmarks.tasks.data import find_file
from benchmarks.tasks.decode import read_array
from sparsebit.quantization import QuantModel, parse_qconfig

SEED = 0


def config(setting: str, quantizers: str) -> dict[str, Any]:
    weight, activation = (int(bits) for bits in setting.lower().removeprefix("w").split("a"))
    kinds = quantizers.split(",")
    return {
        "BACKEND": "virtual",
        "FIRST_LAST": 8,
        "W": {
            "QSCHEME": "per-channel-symmetric",
            "QUANTIZER": {"BIT": weight, "TYPE": kinds[0]},
            "OBSERVER": {"TYPE": "mse"},
        },
        "A": {
            "QSCHEME": "per-tensor-affine",
            "QUANTIZER": {"BIT": activation, "TYPE": kinds[-1]},
            "OBSERVER": {"TYPE": "mse"},
        },
    }


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip, and shift by up to four pixels, each image for itself, zeros coming in."""
    count, device = len(images), images.device
    flip = torch.rand(count, generator=generator, device=device) < 0.5
    images = torch.where(flip[:, None, None, None], images.flip(3), images)
    padded = F.pad(images, (4, 4, 4, 4))
    dy, dx = (torch.randint(9, (count, 1), generator=generator, device=device) for _ in range(2))
    span = torch.arange(32, device=device)
    rows, columns = (dy + span)[:, None, :, None], (dx + span)[:, None, None, :]
    sample = torch.arange(count, device=device)[:, None, None, None]
    channel = torch.arange(3, device=device)[None, :, None, None]
    return padded[sample, channel, rows, columns]


def measure(task: Task, setting: str, quantizers: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(SEED)
    device = torch.device(options.device)
    path = find_file(task.folder, "cifar10_train10k.npz")
    images = normalize(read_array(path, "images")).to(device)
    labels = read_array(path, "labels").long().to(device)
    qcfg = parse_qconfig(config(setting, quantizers))
    qmodel = QuantModel(task.model().to(device), qcfg, images[:2])
    qmodel.prepare_calibration()
    for batch in images[:256].split(64):
        qmodel(batch)
    observers = "update" if quantizers == "uniform" else "freeze"
    qmodel.init_QAT(distill=options.distill, observers=observers)
    predict = lambda x: qmodel(x.to(device))  # noqa: E731
    qmodel.eval()
    before = task.evaluate(predict, options.limit).metric
    qmodel.train()
    groups = qmodel.parameter_groups(options.lr, quantizer_lr=options.quantizer_lr, weight_decay=1e-4)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    per_epoch = len(images) // options.batch
    total = options.epochs * per_epoch
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * step / total))
    )
    generator = torch.Generator(device).manual_seed(SEED)
    start = time.perf_counter()
    for _ in track(range(options.epochs), f"{setting} {quantizers}", transient=True):
        order = torch.randperm(len(images), generator=generator, device=device)
        for step in range(per_epoch):
            rows = order[step * options.batch : (step + 1) * options.batch]
            outputs = qmodel(augment(images[rows], generator))
            loss = qmodel.distill(F.cross_entropy(outputs, labels[rows]))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
    seconds = time.perf_counter() - start
    qmodel.eval()
    return {
        "setting": setting,
        "quantizers": quantizers,
        "epochs": options.epochs,
        "lr": options.lr,
        "quantizer_lr": options.quantizer_lr,
        "distill": options.distill,
        "calibrated": round(before, 2),
        "trained": round(task.evaluate(predict, options.limit).metric, 2),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--settings", nargs="*", default=["w4a4", "w2a4", "w2a2"])
    parser.add_argument(
        "--quantizers", nargs="*", default=["lsq"], help="one for both sides, or weights,activations"
    )
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--quantizer-lr", type=float, default=None)
    parser.add_argument("--distill", type=float, default=0.9)
    parser.add_argument("--limit", type=int, default=None, help="test images, for a quick look")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).parent / "results" / "cifar10_resnet20.json"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    task, console, rows = open_task("cifar10_resnet20"), Console(), []
    for setting in options.settings:
        for quantizers in options.quantizers:
            rows.append(measure(task, setting, quantizers, options))
            console.print(rows[-1])
            text = {"task": task.name, "float": task.published, "environment": describe(SEED), "rows": rows}
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
