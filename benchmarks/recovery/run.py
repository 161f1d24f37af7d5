"""How much accuracy do the recovery steps win back, each alone and together, without labels?

For every setting (bits of weights and activations) the same model is calibrated on the same images with different
``SCHEDULE.RECOVERY`` lists; ``[]`` is rounding to the nearest. Weights have one scale per output channel, the first and
the last layer have 8 bits, as in the papers (``--first-last 8 0`` measures it both ways), batch norm is folded. The
file is written after every row; ``--blocks`` shows each block as it is finished.

Run from the repository root: ``SPARSEBIT_DATA=... python -m benchmarks.recovery.run [--device cuda]``
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import time
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from rich.console import Console
from rich.table import Table
from torch import Tensor

from benchmarks.environment import describe
from benchmarks.tasks import Task, open_task
from sparsebit.quantization import QuantModel, parse_qconfig

SEED = 0
RECIPES: dict[str, list[Any]] = {
    "nearest": [],
    "equalization": ["equalization"],
    "bias_correction": ["bias_correction"],
    "weight_correction": ["weight_correction"],
    "smoothquant": ["smoothquant"],
    "adaround": ["adaround"],
    "brecq": ["brecq"],
    "equalization+brecq": ["equalization", "brecq"],
}


def config(setting: str, recipe: list[Any], first_last: int, options: argparse.Namespace) -> dict[str, Any]:
    """W4A8 and so on, per channel; the layout of activations as the task has it."""
    weight, activation = (int(bits) for bits in setting.lower().removeprefix("w").split("a"))
    steps = [
        {name: {"steps": options.steps, **options.extra}} if name in ("adaround", "brecq") else name
        for name in recipe
    ]
    return {
        "BACKEND": "virtual",
        "FIRST_LAST": first_last or None,
        "SCHEDULE": {"FUSE_BN": True, "RECOVERY": steps},
        "W": {
            "QSCHEME": options.weights,
            "QUANTIZER": {"BIT": weight},
            "OBSERVER": {"TYPE": "mse"},
        },
        "A": {
            "QSCHEME": "per-tensor-affine",
            "QUANTIZER": {"BIT": activation},
            "OBSERVER": {"TYPE": "mse"},
            "SPECIFIC": [{f"op:{op}": {"QUANTIZER.DISABLE": True}} for op in options.float_ops],
        },
    }


def measure(
    task: Task, setting: str, name: str, first_last: int, options: argparse.Namespace
) -> dict[str, Any]:
    torch.manual_seed(SEED)
    device = torch.device(options.device)

    def move(value: Any) -> Any:
        return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), value)

    model = task.model().to(device)
    qcfg = parse_qconfig(config(setting, RECIPES[name], first_last, options))
    qmodel = QuantModel(model, qcfg, *move(task.example()))
    qmodel.prepare_calibration()
    for args, kwargs in task.calibration(options.images, 64):
        qmodel(*move(args), **move(kwargs))
    start = time.perf_counter()
    qmodel.calc_qparams()
    seconds = time.perf_counter() - start
    qmodel.set_quant(w_quant=True, a_quant=True)
    result = task.evaluate(lambda *a, **k: qmodel(*move(a), **move(k)), options.limit)
    return {
        "setting": setting,
        "recipe": name,
        "steps": options.steps if name.endswith(("adaround", "brecq")) else 0,
        "first_last": first_last,
        "weights": options.weights,
        "float_ops": options.float_ops,
        "metric": round(result.metric, 4),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--task", default="cifar10_resnet20")
    parser.add_argument("--settings", nargs="*", default=["w4a8", "w4a4", "w2a8", "w3a3"])
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES), choices=list(RECIPES))
    parser.add_argument("--images", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--extra", type=json.loads, default={}, help="more options of adaround and brecq, as JSON"
    )
    parser.add_argument(
        "--first-last",
        type=int,
        nargs="*",
        default=[8],
        help="bits of the first and last layer; 0: as the rest",
    )
    parser.add_argument("--weights", default="per-channel-symmetric")
    parser.add_argument("--float-ops", nargs="*", default=[], help="operators whose inputs stay in float")
    parser.add_argument("--limit", type=int, default=None, help="test samples, for a quick look")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", action="store_true", help="show every block, its error and its time")
    parser.add_argument("--output", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.blocks:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    task, console = open_task(options.task), Console()
    output = options.output or Path(__file__).parent / "results" / f"{options.task}.json"
    rows = []
    for setting, first_last, name in itertools.product(options.settings, options.first_last, options.recipes):
        rows.append(measure(task, setting, name, first_last, options))
        console.print(rows[-1])
        output.parent.mkdir(parents=True, exist_ok=True)
        text = {
            "task": task.name,
            "float": task.published,
            "images": options.images,
            "extra": options.extra,
            "environment": describe(SEED),
            "rows": rows,
        }
        output.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")
    title = f"{task.name}, float {task.published}"
    table = Table("setting", "first, last", "recipe", task.metric, "seconds", title=title)
    for row in rows:
        ends = f"{row['first_last'] or 'as the rest'}"
        table.add_row(row["setting"], ends, row["recipe"], f"{row['metric']:.2f}", f"{row['seconds']:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
