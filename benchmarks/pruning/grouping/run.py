"""How long does it take to find the channel groups of a net and to shrink it, beside Torch-Pruning?

Both start from the same eager model and end with half of its channels gone by the size of their filters (the
classifier is left alone); ours is timed in its steps too. The two run in turns, in one process, and seconds are
those of the processor, so that whatever else runs on the machine does not count.

Run from the repository root: ``python -m benchmarks.pruning.grouping.run --torch-pruning FOLDER``, where FOLDER
holds the peer (``pip install torch-pruning --no-deps --target FOLDER``). Without it, ours is timed alone.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.environment import describe
from sparsebit import capture
from sparsebit.analysis.node_cost import cost
from sparsebit.sparse.channels import Group, find_groups
from sparsebit.sparse.shrink import make_plan, shrink_graph
from tests.zoo.nets import mobilenet, resnet

SEED = 0
MODELS: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": resnet.resnet18,
    "ResNet-50": resnet.resnet50,
    "MobileNetV2": mobilenet.MobileNetV2,
}


def keep_half(group: Group, tensors: dict[str, Tensor]) -> Tensor:
    """The units with the larger filters: bool [units]."""
    scores = torch.zeros(group.channels)
    for where in group.slices:
        if where.role == "output":
            scores.index_add_(0, where.channel, where.take(tensors[where.tensor]).abs().sum(1))
    kept = torch.zeros(group.channels, dtype=torch.bool)
    kept[scores.topk(group.channels // 2).indices] = True
    return kept


@torch.no_grad()
def ours(model: nn.Module, x: Tensor) -> tuple[dict[str, float], nn.Module]:
    """Capture, group, choose and shrink; seconds by step."""
    times, start = {}, time.process_time()

    def lap(name: str) -> None:
        nonlocal start
        now = time.process_time()
        times[name], start = now - start, now

    gm = capture(model, (x,))
    lap("capture")
    groups = find_groups(gm)
    lap("group")
    tensors = dict(gm.named_parameters())
    kept = {group.name: keep_half(group, tensors) for group in groups.free}
    lap("choose")
    small = shrink_graph(gm, make_plan(gm, groups, kept))
    lap("shrink")
    return times, small


def theirs(peer: Any, model: nn.Module, x: Tensor) -> tuple[float, nn.Module]:
    """Torch-Pruning's magnitude pruner, on a copy that is not timed."""
    model = copy.deepcopy(model)
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    start = time.process_time()
    pruner = peer.pruner.MagnitudePruner(
        model,
        x,
        importance=peer.importance.MagnitudeImportance(p=1),
        pruning_ratio=0.5,
        ignored_layers=[head],
    )
    pruner.step()
    return time.process_time() - start, model


def measure(name: str, rounds: int, peer: Any) -> dict[str, Any]:
    torch.manual_seed(SEED)
    model, x = MODELS[name]().eval(), torch.randn(1, 3, 224, 224)
    steps: list[dict[str, float]] = []
    peers: list[float] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, small = ours(model, x)
        if peer is not None:
            _, other = theirs(peer, model, x)
        for _ in range(rounds):
            steps.append(ours(model, x)[0])
            if peer is not None:
                peers.append(theirs(peer, model, x)[0])
        row: dict[str, Any] = {
            "model": name,
            "macs": cost(capture(model, (x,))).macs,
            "macs_left": cost(small).macs,
        }  # type: ignore[arg-type]
        row |= {f"{step}_s": round(statistics.median(s[step] for s in steps), 4) for step in steps[0]}
        own = [s["group"] + s["shrink"] for s in steps]
        row["group_and_shrink_s"] = round(statistics.median(own), 4)
        row["everything_s"] = round(statistics.median(sum(s.values()) for s in steps), 4)
        if peer is not None:
            row["torch_pruning_s"] = round(statistics.median(peers), 4)
            row["torch_pruning_macs_left"] = cost(capture(other, (x,))).macs
            row["ratio"] = round(statistics.median(a / b for a, b in zip(own, peers, strict=True)), 4)
            row["ratio_everything"] = round(
                statistics.median(sum(s.values()) / b for s, b in zip(steps, peers, strict=True)), 4
            )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--torch-pruning", type=Path, help="folder that holds the torch_pruning package")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peer, packages = None, ("torch", "numpy")
    if options.torch_pruning:
        sys.path.append(str(options.torch_pruning))
        import torch_pruning as peer  # type: ignore[import-not-found,no-redef]

        packages = (*packages, "torch-pruning")  # type: ignore[assignment]
    rows = [measure(name, options.rounds, peer) for name in MODELS]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"environment": describe(SEED, packages), "rounds": options.rounds, "rows": rows}
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=220).print(table)


if __name__ == "__main__":
    main()
