"""Pruning on a CUDA device: what was checked on the CPU holds there, and masks and choices are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsebit.config.pruning.criteria import SPARSER_RULES
from sparsebit.sparse import SPARSERS, SparseModel, load, save
from tests.sparse.nets import images, labels, residual

pytestmark = pytest.mark.gpu

STRUCTURED = [name for name in sorted(SPARSERS) if "structured" in SPARSER_RULES[name].types]


class Attention(nn.Module):
    """Attention with a norm, a residual and a gated MLP."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.up = nn.Linear(6, width)
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.gate, self.value = nn.Linear(width, 48), nn.Linear(width, 48)
        self.down = nn.Linear(48, width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.up(x)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        x = x + self.down(functional.silu(self.gate(x)) * self.value(x))
        z: Tensor = self.head(x.mean(1))
        return z


class Recurrent(nn.Module):
    """An embedding, a bidirectional LSTM and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.run = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
        self.head = nn.Linear(48, 5)

    def forward(self, ids: Tensor) -> Tensor:
        y: Tensor = self.head(self.run(self.table(ids))[0].mean(1))
        return y


def inputs(name: str) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    if name == "recurrent":
        return torch.randint(20, (4, 7), generator=generator)
    if name == "attention":
        return torch.randn(4, 7, 6, dtype=torch.float64, generator=generator)
    return images()


def make(name: str) -> nn.Module:
    torch.manual_seed(0)
    nets = {"residual": residual, "attention": Attention, "recurrent": Recurrent}
    return nets[name]().double().eval()


def session(name: str, device: str, **settings: Any) -> SparseModel:
    sparser = {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, **settings}
    if sparser["TYPE"] == "nm":
        sparser.pop("RATIO")
    return SparseModel(make(name), {"SPARSER": sparser}, inputs(name)).to(device)


def close(one: Tensor, other: Tensor, within: float = 1e-9) -> bool:
    return bool((one.cpu() - other.cpu()).abs().max() <= within * other.abs().max().cpu())


@pytest.mark.parametrize("criterion", STRUCTURED)
def test_the_choice_is_that_of_the_cpu(criterion: str) -> None:
    rows = []
    for device in ("cpu", "cuda"):
        smodel = session("residual", device, STRATEGY=criterion)
        smodel.calc_params([(images(), labels())], functional.cross_entropy)
        x = images().to(device)
        assert close(smodel.shrink()(x), smodel(x))
        rows.append([(row.name, row.after) for row in smodel.report().rows])
    assert rows[0] == rows[1]


@pytest.mark.parametrize("name", ["residual", "attention", "recurrent"])
def test_shrunk_models_run_train_and_come_back(name: str, tmp_path: Path) -> None:
    smodel = session(name, "cuda")
    x = inputs(name).cuda()
    dense = smodel(x)
    smodel.calc_params()
    small = smodel.shrink()
    assert all(parameter.is_cuda for parameter in small.parameters())
    assert close(small(x), smodel(x))
    assert sum(p.numel() for p in small.parameters()) == smodel.report().params_after
    assert small(x).shape == dense.shape
    small.train()
    functional.cross_entropy(small(x), labels().cuda()).backward()
    small.eval()
    save(small, tmp_path)
    again = load(tmp_path, make(name))
    assert close(again(inputs(name)), small(x))


@pytest.mark.parametrize("kind", ["structured", "unstructured", "nm", "block"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_masks_hold_through_training(kind: str, optimizer: Any) -> None:
    smodel = session("residual", "cuda", TYPE=kind).train()
    x, y = images().cuda(), labels().cuda()
    smodel.calc_params()
    zeros = {name: parameter == 0 for name, parameter in smodel.model.named_parameters()}
    options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
    moving = optimizer(smodel.parameters(), lr=0.01, weight_decay=0.1, **options)
    for _ in range(3):
        moving.zero_grad()
        functional.cross_entropy(smodel(x), y).backward()
        moving.step()
    for name, parameter in smodel.model.named_parameters():
        assert bool((parameter[zeros[name]] == 0).all()), name
        assert bool((parameter[~zeros[name]] != 0).any()), name
    smodel.eval()
    assert close(smodel.shrink()(x), smodel(x))


def test_masks_follow_to_the_device_and_back(tmp_path: Path) -> None:
    smodel = session("residual", "cpu", TYPE="unstructured")
    smodel.calc_params()
    smodel.to("cuda")
    moving = torch.optim.SGD(smodel.parameters(), lr=0.1, momentum=0.9)
    functional.cross_entropy(smodel(images().cuda()), labels().cuda()).backward()
    moving.step()
    weight = smodel.model.get_parameter("conv1.weight")
    assert weight.is_cuda and int((weight == 0).sum()) == weight.numel() // 2
    smodel.save(tmp_path)
    again = SparseModel.load(tmp_path, residual())
    assert close(again(images()), smodel(images().cuda()))
    assert smodel.to(smodel.cfg.DEVICE).device.type == "cuda"


def test_a_schedule_goes_on_where_it_stopped() -> None:
    config = {
        "SPARSER": {"TYPE": "structured", "STRATEGY": "taylor", "RATIO": 0.5, "ROUND_TO": 1},
        "SCHEDULE": {"TYPE": "cubic", "EVERY": 1, "TIMES": 3},
    }
    x, y = images().cuda(), labels().cuda()
    first, second = (SparseModel(residual(), config, images()).cuda() for _ in range(2))
    for smodel in (first, second):
        for _ in range(2):
            smodel.zero_grad()
            functional.cross_entropy(smodel(x), y).backward()
            smodel.step()
        if smodel is first:
            second.load_state_dict(first.state_dict())
            assert close(second(x), first(x))
    assert int(second.schedule_step) == 4
    assert [row.after for row in second.report().rows][:2] == [8, 12]


def test_half_precision() -> None:
    smodel = session("attention", "cuda").to(torch.float16)
    smodel.calc_params()
    x = inputs("attention").cuda().half()
    assert close(smodel.shrink()(x).float(), smodel(x).float(), within=2e-2)
