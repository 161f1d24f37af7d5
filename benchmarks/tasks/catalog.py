"""Every task by name, with the float figure it must reproduce."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.tasks.camvid import CamVid
from benchmarks.tasks.cifar10 import Cifar10
from benchmarks.tasks.coco import Coco
from benchmarks.tasks.data import DataError, data_folder
from benchmarks.tasks.imagenet import ImageNet
from benchmarks.tasks.stsb import Stsb
from benchmarks.tasks.task import Task


def _cifar10_resnet(folder: Path, *, name: str, blocks: int, published: float) -> Task:
    return Cifar10(name=name, metric="top-1 %", published=published, folder=folder, batch=100, blocks=blocks)


def _imagenet(folder: Path) -> Task:
    name = "imagenet_efficientnet_lite0"
    return ImageNet(name=name, metric="top-1 %", published=73.4, folder=folder, batch=10)


def _camvid(folder: Path) -> Task:
    return CamVid(name="camvid_espnet", metric="mIoU %", published=59.12, folder=folder, batch=6)


def _coco(folder: Path) -> Task:
    return Coco(name="coco_fastestdet", metric="AP50 %", published=32.14, folder=folder, batch=16)


def _stsb(folder: Path) -> Task:
    return Stsb(name="stsb_minilm", metric="Spearman", published=0.8672, folder=folder, batch=32)


TASKS: dict[str, Callable[[Path], Task]] = {
    "cifar10_resnet20": partial(_cifar10_resnet, name="cifar10_resnet20", blocks=3, published=91.73),
    "cifar10_resnet56": partial(_cifar10_resnet, name="cifar10_resnet56", blocks=9, published=93.39),
    "imagenet_efficientnet_lite0": _imagenet,
    "camvid_espnet": _camvid,
    "coco_fastestdet": _coco,
    "stsb_minilm": _stsb,
}


def open_task(name: str) -> Task:
    """One task on the data that SPARSEBIT_DATA names."""
    if name not in TASKS:
        raise DataError(f"no task named {name!r}", expected=f"one of {', '.join(TASKS)}")
    return TASKS[name](data_folder())
