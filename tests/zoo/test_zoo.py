"""The zoo itself: every entry builds, runs at all its sizes, repeats exactly and trains as it says."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.rnn import pack_sequence

from . import ZOO, Call, ZooEntry, outputs_of
from .entry import stir
from .nets.cifar_resnet import cifar_resnet20, cifar_resnet56
from .nets.efficientnet_lite import EfficientNetLite0
from .nets.espnet import ESPNet
from .nets.fastestdet import FastestDet
from .nets.mobilenet import MobileNetV2
from .nets.resnet import resnet18, resnet50
from .nets.unet import UNet
from .nets.vit import ViT
from .symbolic import SYMBOLIC, LeafTracer

every_entry = pytest.mark.parametrize("entry", ZOO.values(), ids=ZOO.keys())
trained_entry = pytest.mark.parametrize("entry", [e for e in ZOO.values() if e.trains], ids=lambda e: e.name)
symbolic_entry = pytest.mark.parametrize(
    "entry", [e for e in ZOO.values() if e.symbolic], ids=lambda e: e.name
)


def made(entry: ZooEntry) -> nn.Module:
    torch.manual_seed(0)
    return entry.make()


def calls_of(entry: ZooEntry) -> list[Call]:
    return [entry.inputs(batch) for batch in entry.batches] + entry.other_sizes()


def run(model: nn.Module, call: Call) -> list[Tensor]:
    args, kwargs = call
    torch.manual_seed(1)
    with torch.no_grad():
        return [tensor.clone() for tensor in outputs_of(model(*args, **kwargs))]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return len(left) == len(right) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
        for a, b in zip(left, right, strict=True)
    )


@every_entry
def test_runs_at_every_size_and_repeats_exactly(entry: ZooEntry) -> None:
    first, second = made(entry), made(entry)
    assert not first.training, "make() returns the model in eval mode"
    for one, two, three in zip(calls_of(entry), calls_of(entry), calls_of(entry), strict=True):
        outputs = run(first, one)
        assert outputs, "no tensor in the output"
        assert all(torch.isfinite(t).all() for t in outputs if t.is_floating_point() or t.is_complex())
        assert same(outputs, run(second, two)), "two models from one seed disagree"
        if not entry.stateful:
            assert same(outputs, run(first, three)), "a second call disagrees"


@every_entry
def test_inputs_are_fresh_and_equal(entry: ZooEntry) -> None:
    for one, two in zip(calls_of(entry), calls_of(entry), strict=True):
        left, right = outputs_of(one), outputs_of(two)
        assert same(left, right)
        assert not {id(t) for t in left} & {id(t) for t in right}


@trained_entry
def test_training_step_gives_finite_gradients(entry: ZooEntry) -> None:
    model = made(entry).train()
    args, kwargs = entry.inputs(entry.batches[-1])
    torch.manual_seed(1)
    outputs = [t for t in outputs_of(model(*args, **kwargs)) if t.requires_grad]
    assert outputs, "no output carries a gradient"
    sum((t.abs() if t.is_complex() else t.float()).pow(2).mean() for t in outputs).backward()  # type: ignore[union-attr]
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients and all(torch.isfinite(g).all() for g in gradients)
    assert any(g.abs().sum() > 0 for g in gradients)


def takes_symbolic_tracing(entry: ZooEntry) -> bool:
    """Whether the traced graph computes and remembers what the model does, over its batches in turn."""
    model, traced = made(entry), made(entry)
    graph = fx.GraphModule(traced, LeafTracer().trace(traced))
    if not all(
        same(run(graph, entry.inputs(batch)), run(model, entry.inputs(batch))) for batch in entry.batches
    ):
        return False
    state = graph.state_dict()
    left = {key: value for key, value in model.state_dict().items() if entry.stateful or key in state}
    return left.keys() <= state.keys() and same(list(left.values()), [state[key] for key in left])


@symbolic_entry
def test_symbolic_tracing_takes_it(entry: ZooEntry) -> None:
    assert takes_symbolic_tracing(entry)


def test_symbolic_names_exist() -> None:
    assert SYMBOLIC.issubset(ZOO)


def test_zoo_is_large_and_varied() -> None:
    families = [entry.family for entry in ZOO.values()]
    assert len(ZOO) >= 75
    assert set(families) == {"cnn", "rnn", "language", "vision", "audio", "nasty"}
    assert all(name == entry.name for name, entry in ZOO.items())
    assert sum(entry.refuses is not None for entry in ZOO.values()) >= 4


def test_importing_the_zoo_leaves_transformers_alone() -> None:
    code = "import sys, tests.zoo; assert 'transformers' not in sys.modules"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=root, check=True)


FULL_SIZE: dict[Callable[[], nn.Module], int] = {
    resnet18: 11_689_512,
    resnet50: 25_557_032,
    cifar_resnet20: 269_722,
    cifar_resnet56: 853_018,
    MobileNetV2: 3_504_872,
    EfficientNetLite0: 4_652_008,
    ESPNet: 354_517,
    FastestDet: 244_490,
    UNet: 31_037_698,
    ViT: 22_050_664,
}


@pytest.mark.parametrize("build", FULL_SIZE, ids=lambda build: build.__name__)
def test_full_size_has_the_published_number_of_parameters(build: Callable[[], nn.Module]) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in build().parameters()) == FULL_SIZE[build]


def test_outputs_of_finds_every_tensor_in_order() -> None:
    class Holder:
        def __init__(self) -> None:
            self.keys, self.owner = [torch.tensor(7.0)], self

    packed = pack_sequence([torch.tensor([4.0, 6.0]), torch.tensor([5.0])])
    pair = namedtuple("pair", "a b")(torch.tensor(2.0), None)
    value = {"x": torch.tensor(1.0), "y": [pair, (torch.tensor(3.0), "word", 8)], "z": packed, "w": Holder()}
    found = [
        number
        for tensor in outputs_of(value)
        if tensor.is_floating_point()
        for number in tensor.flatten().tolist()
    ]
    assert found == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def test_outputs_of_keeps_repeated_tensors() -> None:
    x = torch.ones(2)
    assert [id(t) for t in outputs_of([x, {"again": x}])] == [id(x), id(x)]


def test_stir_leaves_no_constant_weight() -> None:
    model = stir(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.LayerNorm(4)))
    for tensor in [*model.parameters(), *(b for b in model.buffers() if b.dim())]:
        assert tensor.std() > 0
