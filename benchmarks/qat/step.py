"""What does a step of quantization-aware training cost, compared with a float step?

ResNet-20, batches of 128 CIFAR images, forward, backward and SGD, with batch norm left in place. Both models take their
steps in turns, so what else runs on the machine disturbs both; the figure is the median of the ratios.

Run from the repository root: ``python -m benchmarks.qat.step [--device cuda]``
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.environment import describe
from benchmarks.ptq.timing import compare
from sparsebit.quantization import QuantModel, parse_qconfig
from tests.zoo.nets.cifar_resnet import cifar_resnet20

SEED, GOAL = 0, 1.6
METHODS = {  # quantizers of weights and activations, and whether grids follow what they see
    "uniform": ("uniform", "uniform", False),
    "uniform, observers updating": ("uniform", "uniform", True),
    "lsq": ("lsq", "lsq", False),
    "lsq+": ("lsq+", "lsq+", False),
    "pact": ("uniform", "pact", False),
    "dorefa": ("dorefa", "dorefa", False),
}


def config(weight: str, activation: str) -> dict[str, Any]:
    return {
        "BACKEND": "virtual",
        "FIRST_LAST": 8,
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 4, "TYPE": weight}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 4, "TYPE": activation}},
    }


def training_step(
    model: nn.Module, batch: int, device: torch.device, memory_format: torch.memory_format
) -> Callable[[], None]:
    images = torch.randn(batch, 3, 32, 32, device=device).to(memory_format=memory_format)
    labels = torch.randint(10, (batch,), device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)

    def step() -> None:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def network(device: torch.device, layout: torch.memory_format) -> nn.Module:
    made: nn.Module = cifar_resnet20().to(device).to(memory_format=layout)  # type: ignore[call-overload]
    return made


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    torch.manual_seed(SEED)
    device = torch.device(options.device)
    layout = torch.channels_last if options.channels_last else torch.contiguous_format
    plain, twin = (network(device, layout) for _ in range(2))
    weight, activation, follows = METHODS[name]
    images = torch.randn(options.batch, 3, 32, 32, device=device)
    qmodel = QuantModel(twin.eval(), parse_qconfig(config(weight, activation)), images[:2])
    qmodel.prepare_calibration()
    qmodel(images)
    qmodel.init_QAT(observers="update" if follows else "freeze")
    steps = [training_step(model.train(), options.batch, device, layout) for model in (qmodel, plain)]
    for step in steps:  # the first one allocates
        step()
    found = compare(*steps, rounds=options.rounds, patience=options.patience)
    return {
        "method": name,
        "ratio": round(found.wall_ratio, 3),
        "cpu_ratio": round(found.cpu_ratio, 3),
        "milliseconds": round(1000 * found.seconds.wall, 1),
        "float_milliseconds": round(1000 * found.baseline_seconds.wall, 1),
        "rounds": found.rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--patience", type=float, default=120.0, help="seconds for each method")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "step.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    console = Console()
    table = Table("method", "ratio", "ratio of processor time", "ms", "float ms", title=f"goal {GOAL}x")
    rows = []
    for name in options.methods:
        rows.append(row := measure(name, options))
        table.add_row(
            name, *(str(row[k]) for k in ("ratio", "cpu_ratio", "milliseconds", "float_milliseconds"))
        )
        text = {
            "model": "cifar_resnet20",
            "batch": options.batch,
            "channels_last": options.channels_last,
            "goal": GOAL,
            "environment": describe(SEED),
            "rows": rows,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    console.print(table)


if __name__ == "__main__":
    main()
