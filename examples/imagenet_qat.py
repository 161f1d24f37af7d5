"""Any classifier trained at 4 bits, on one process or several.

torchrun --nproc_per_node 8 imagenet_qat.py --model torchvision.models:resnet18 --data train --test val
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from pictures import accuracy, load, make_model
from torch import nn

from sparsebit import QuantModel


def main(words: list[str] | None = None) -> dict[str, float]:
    """Calibrate on every process's part of the data, train with DistributedDataParallel; returns the accuracies."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", required=True, help="package.module:factory, called without arguments")
    options.add_argument("--weights", type=Path, help="a state dict saved by torch")
    options.add_argument(
        "--data", type=Path, required=True, help="training pictures in class folders, or a zip"
    )
    options.add_argument("--test", type=Path, required=True, help="test pictures likewise")
    options.add_argument("--size", type=int, default=224)
    options.add_argument("--batch", type=int, default=64, help="of each process")
    options.add_argument("--bits", type=int, default=4)
    options.add_argument("--epochs", type=int, default=10)
    options.add_argument("--lr", type=float, default=0.01)
    options.add_argument("--limit", type=int)
    options.add_argument("--save", help="folder for the trained model")
    options = options.parse_args(words)

    together = "RANK" in os.environ  # set by torchrun
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if torch.cuda.is_available() else "cpu"
    )
    if together:
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank, world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    mine = load(options.data, options.size, options.batch, options.limit)[rank::world]
    test = load(options.test, options.size, options.batch, options.limit)
    torch.manual_seed(0)
    model = make_model(options.model, options.weights)  # the same on all processes
    torch.manual_seed(rank)
    config = {
        "DEVICE": str(device),
        "FIRST_LAST": 8,
        "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": "lsq", "BIT": options.bits}},
        "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": "lsq", "BIT": options.bits}},
    }
    qmodel = QuantModel(model, config, example_inputs=(mine[0][0][:2],)).to(device)
    qmodel.calibrate(mine[:4])  # the ranges of all processes are merged
    results = {"float": accuracy(model, test), "calibrated": accuracy(qmodel, test, str(device))}
    qmodel.init_QAT()
    trained: nn.Module = nn.parallel.DistributedDataParallel(qmodel) if together else qmodel
    optimizer = torch.optim.SGD(qmodel.parameter_groups(options.lr, weight_decay=1e-4), momentum=0.9)
    for _ in range(options.epochs):
        trained.train()
        for images, labels in mine:
            loss = F.cross_entropy(trained(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    qmodel.eval()
    results["trained"] = accuracy(qmodel, test, str(device))
    if rank == 0:
        for name, value in results.items():
            print(f"{name:10} {value:.2f} %")
        if options.save:
            qmodel.save(options.save)
    if together:
        dist.destroy_process_group()
    return results


if __name__ == "__main__":
    main()
