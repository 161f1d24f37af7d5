"""Weights are snapped together only where that is the same."""

from __future__ import annotations

import torch
from torch import nn

from sparsebit.quantization import QuantModel
from sparsebit.quantization.quantizers import Quantizer
from sparsebit.quantization.training import weight_groups
from sparsebit.quantization.training.weight_groups import WeightGroups, _divide, _is_plain, _member
from tests.quantization.nets import config


def qat_model(kind: str) -> QuantModel:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3), nn.Linear(3, 8), nn.Linear(8, 2)
    )
    x = torch.randn(4, 16)
    qmodel = QuantModel(net, config(W__QUANTIZER__TYPE=kind), x)
    qmodel.calibrate([x], progress=False)
    qmodel.init_QAT()
    return qmodel.train()


def weights_of(qmodel: QuantModel) -> list[tuple[torch.Tensor, Quantizer]]:
    return [(weight, qmodel.quantizers[name]) for name, weight in qmodel.weights().items()]


def test_consecutive_weights_are_grouped_up_to_a_size(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    found = [(weight, quantizer, quantizer.scale) for weight, quantizer in weights_of(qat_model("lsq"))]
    assert [part for part, _ in _divide(found)] == [slice(0, 5)]
    monkeypatch.setattr(weight_groups, "GROUP", 200)
    assert [part for part, _ in _divide(found)] == [slice(0, 2), slice(2, 5)]
    monkeypatch.setattr(weight_groups, "LARGEST", 30)  # the first two are alone then
    assert [part for part, _ in _divide(found)] == [slice(2, 5)]


def test_a_member_needs_memory_at_multiples_of_16_bytes_and_a_known_factor() -> None:
    _, quantizer = weights_of(qat_model("lsq"))[2]
    assert _member(torch.empty(3, 8), quantizer) is not None
    assert _member(torch.empty(3, 7), quantizer) is None
    assert _member(torch.empty(8, 3).t(), quantizer) is None
    assert _member(torch.empty(3, 8, dtype=torch.float64), quantizer) is None


def test_only_quantizers_that_snap_and_nothing_else() -> None:
    assert all(_is_plain(quantizer) for _, quantizer in weights_of(qat_model("lsq")))
    assert not any(_is_plain(quantizer) for _, quantizer in weights_of(qat_model("dorefa")))
    _, quantizer = weights_of(qat_model("uniform"))[0]
    assert _is_plain(quantizer)
    quantizer.following = True
    assert not _is_plain(quantizer)


def test_what_is_ready_is_used_for_its_own_weight_alone() -> None:
    weight, quantizer = weights_of(qat_model("uniform"))[0]
    quantizer.ready = weight, torch.ones(8, 16)
    assert torch.equal(quantizer(weight), torch.ones(8, 16))
    other = weight.detach().clone()
    assert torch.equal(quantizer(other), quantizer.snap(other))


def test_nothing_is_ready_after_a_forward() -> None:
    qmodel = qat_model("lsq")
    qmodel(torch.randn(4, 16)).sum().backward()
    assert all(quantizer.ready is None for quantizer in qmodel.quantizers.values())


def test_other_bits_need_another_group() -> None:
    groups, found = WeightGroups(), weights_of(qat_model("uniform"))[:2]

    def ends() -> set[int]:
        ((_, group),) = groups._grouped([(weight, one, one.scale) for weight, one in found])
        return {member.high for member in group.members}

    assert ends() == {127}
    for weight, quantizer in found:
        quantizer.set_bit(4)
        quantizer.observe_whole(weight)
    assert ends() == {7}
