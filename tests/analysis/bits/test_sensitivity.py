"""Sensitivities: what is measured is what happens, and the curvature estimates agree with it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sparsebit.analysis import FLOAT, Agreement, Sensitivity, sensitivity, with_layer_bits
from sparsebit.analysis.bits.choices import find_choices, find_products
from sparsebit.analysis.bits.curvature import Probe
from sparsebit.analysis.profiling.calls import only
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel, parse_qconfig


class Net(nn.Module):
    """A residual block between convolutions, a layer that is called twice, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.inner = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.after = nn.Conv2d(8, 8, 1)
        self.twice, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        x = torch.relu(self.stem(images))
        x = self.after(torch.relu(x + self.inner(x))).mean((2, 3))
        return self.head(self.twice(self.twice(x)))


@pytest.fixture(scope="module")
def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(8, 3, 8, 8, generator=generator), torch.randint(4, (8,), generator=generator))
        for _ in range(2)
    ]


@pytest.fixture(scope="module")
def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


FAST = ("W.OBSERVER.TYPE=minmax", "A.OBSERVER.TYPE=minmax")
CONFIG = parse_qconfig("w4a8", ["DEVICE=cpu", "FIRST_LAST=null", *FAST])


def measured(net: nn.Module, batches: list[tuple[Tensor, Tensor]], **options: object) -> Sensitivity:
    example = (batches[0][0],)
    return sensitivity(net, CONFIG, batches, example_inputs=example, progress=False, **options)  # type: ignore[arg-type]


def test_it_is_the_error_of_the_model_with_one_weight_quantized(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    found = measured(net, batches, bits=(2, 8))
    only_inner = parse_qconfig(
        CONFIG, ["A.QUANTIZER.BIT=0", "W.QUANTIZER.BIT=0", "W.SPECIFIC={inner: {QUANTIZER.BIT: 2}}"]
    )
    qmodel = QuantModel(net, only_inner, example_inputs=(batches[0][0],))
    qmodel.calibrate(batches, progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    with torch.no_grad():
        pairs = [Agreement.of(net(x), qmodel(x)) for x, _ in batches]
    assert found.errors["inner.weight"][2] == pytest.approx(sum(pairs, Agreement()).relative, rel=1e-3)


@pytest.mark.parametrize("metric", ["output", "fisher", "hessian"])
def test_more_bits_lose_less(net: nn.Module, batches: list[tuple[Tensor, Tensor]], metric: str) -> None:
    found = measured(net, batches, metric=metric, sides=("W", "A"))
    for by in found.errors.values():
        assert by[2] > by[4] > by[8] > by[16] >= by[FLOAT] == 0


@pytest.mark.parametrize("metric", ["fisher", "hessian"])
def test_curvature_predicts_the_error_of_the_outputs(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]], metric: str
) -> None:
    true = measured(net, batches, bits=(8,), sides=("W", "A"))
    guess = measured(net, batches, bits=(8,), sides=("W", "A"), metric=metric, samples=30)
    ratios = [guess.errors[name][8] / true.errors[name][8] for name in true.errors]
    assert all(0.2 < ratio < 5 for ratio in ratios), ratios


@pytest.mark.parametrize("metric", ["fisher", "hessian"])
def test_a_loss_may_be_given(net: nn.Module, batches: list[tuple[Tensor, Tensor]], metric: str) -> None:
    found = measured(net, batches, bits=(4,), metric=metric, loss=nn.functional.cross_entropy)
    assert all(by[4] >= 0 for by in found.errors.values()) and any(by[4] > 0 for by in found.errors.values())


def test_it_is_the_same_every_time_and_changes_nothing(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    before = {name: value.clone() for name, value in net.state_dict().items()}
    flags = [p.requires_grad for p in net.parameters()]
    found = [measured(net, batches, bits=(4,), metric="fisher", seed=3).errors for _ in range(2)]
    assert found[0] == found[1]
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert flags == [p.requires_grad for p in net.parameters()]
    assert all(p.grad is None for p in net.parameters())


def test_tensors_that_meet_in_an_addition_are_chosen_for_together(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    config = parse_qconfig("int8_onnxruntime", ["DEVICE=cpu", *FAST])
    qmodel = QuantModel(net, config, example_inputs=(batches[0][0],))
    qmodel.calibrate(batches, progress=False)
    choices = find_choices(qmodel, ("A",))
    together = next(choice for choice in choices if "add" in choice.layers)
    assert {"relu", "inner"} <= set(together.tensors) and {"add", "inner"} <= set(together.layers)
    for width in (4, 7):  # a rule for its layers reaches all of its tensors
        changed = QuantModel(
            net, with_layer_bits(config, inputs=dict.fromkeys(together.layers, width)), (batches[0][0],)
        )
        assert {changed.quantizers[name].bit for name in together.tensors} == {width}
        others = set(changed.quantizers) - set(together.tensors)
        assert {changed.quantizers[name].bit for name in others} == {8}


def test_a_layer_that_is_called_twice_has_one_weight_and_two_inputs(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    qmodel = QuantModel(net, CONFIG, example_inputs=(batches[0][0],))
    qmodel.calibrate(batches, progress=False)
    choices = find_choices(qmodel, ("W", "A"))
    assert [c.name for c in choices if c.side == "W" and "twice" in c.layers] == ["twice.weight"]
    inputs = [c for c in choices if c.side == "A" and any(layer.startswith("twice") for layer in c.layers)]
    assert sorted(layer for c in inputs for layer in c.layers) == ["twice", "twice_1"]
    products = {product.node: product for product in find_products(qmodel, choices)}
    assert products["twice"].operands[0] == products["twice_1"].operands[0] == "twice.weight"
    assert products["twice"].operands[1] != products["twice_1"].operands[1]


def test_sizes_and_bit_operations_are_counted_by_hand(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    found = measured(net, batches, bits=(4, 8), sides=("W", "A"))
    weights = {name: p for name, p in net.named_parameters() if name.endswith("weight")}
    biases = sum(4 * p.numel() for name, p in net.named_parameters() if name.endswith("bias"))
    expected = biases + sum(p.numel() / 2 + 4 * p.shape[0] for p in weights.values())
    assert found.size(found.uniform(4)) == expected
    assert found.size(dict.fromkeys(found.errors, FLOAT)) == sum(4 * p.numel() for p in net.parameters())
    positions = 8 * 8 * 8  # batch, rows, columns
    macs = positions * (27 * 8 + 72 * 8 + 8 * 8) + 8 * (2 * 64 + 32)
    assert found.bops(found.uniform(8)) == 64 * macs


def test_widths_a_target_cannot_run_are_left_out(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    config = parse_qconfig("int8_onnxruntime", ["DEVICE=cpu", *FAST])
    found = sensitivity(net, config, batches, example_inputs=(batches[0][0],), progress=False)
    assert set(found.errors["stem.weight"]) == {2, 4, 8, FLOAT}  # 16 is none of ONNX Runtime's
    with pytest.raises(SparsebitError, match="runs none of the widths"):
        sensitivity(net, config, batches, example_inputs=(batches[0][0],), bits=(16,))


def test_mistakes_are_told(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    with pytest.raises(SparsebitError, match="no metric 'hesse'"):
        measured(net, batches, metric="hesse")
    with pytest.raises(SparsebitError, match="gave no batch"):
        sensitivity(net, CONFIG, [], example_inputs=(batches[0][0],))
    off = parse_qconfig(CONFIG, ["W.QUANTIZER.BIT=0"])
    with pytest.raises(SparsebitError, match="nothing to choose bits for"):
        sensitivity(net, off, batches, example_inputs=(batches[0][0],))


def test_it_prints_and_is_json(net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    found = measured(net, batches, bits=(4, 8))
    assert "4 bits" in str(found) and "inner.weight" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["choices"][0]["name"] == "stem.weight"


class Bent(nn.Module):
    """Small enough for every second derivative."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x)))


def exact(call: Callable[[Tensor], Tensor], net: nn.Module, name: str) -> Tensor:
    """All of JᵀJ of a function of one weight, in double precision, or of its Hessian where it gives one number."""
    net = copy.deepcopy(net).double()
    weight = net.get_parameter(name).detach()

    def run(value: Tensor) -> Tensor:
        return call(torch.func.functional_call(net, {name: value.view_as(weight)}, (X.double(),)))

    if run(weight.flatten()).dim() == 0:
        return torch.autograd.functional.hessian(run, weight.flatten())
    jacobian = torch.autograd.functional.jacobian(run, weight.flatten()).flatten(0, -2)
    return jacobian.T @ jacobian


X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1, 1, 0])


@pytest.mark.parametrize("name", ["a.weight", "b.weight"])
def test_the_curvature_is_the_true_one(name: str) -> None:
    torch.manual_seed(0)
    net = Bent().eval()
    qmodel = QuantModel(net, CONFIG, example_inputs=(X,))
    qmodel.calibrate([X], progress=False)
    with only(qmodel, ()):
        fisher = Probe(qmodel, [name], hessian=False, samples=500, seed=0).run((X,), {}, None, ())[1][name]
        trace = Probe(qmodel, [name], hessian=True, samples=500, seed=0).run((X,), {}, None, ())[1][name]
        loss = nn.functional.cross_entropy
        bent = Probe(qmodel, [name], hessian=True, samples=500, seed=0).run((X,), {}, loss, (Y,))[1][name]
    diagonal = exact(lambda y: y, net, name).diagonal()
    assert torch.allclose(fisher.flatten().double(), diagonal, rtol=0.3, atol=0.1 * float(diagonal.max()))
    assert float(trace) == pytest.approx(float(diagonal.mean()), rel=0.1)
    hessian = exact(lambda y: loss(y, Y), net, name)
    assert float(bent) == pytest.approx(float(hessian.diagonal().mean()), rel=0.2)
