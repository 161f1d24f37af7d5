from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparsebit.graph.capture import capture
from sparsebit.graph.passes.fold_batch_norm import fold_batch_norm
from sparsebit.graph.value import TensorInfo
from tests.graph.passes.folding import check, input_of, reasons, stirred

NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
CONVS: dict[tuple[int, bool], Any] = {
    (1, False): nn.Conv1d,
    (2, False): nn.Conv2d,
    (3, False): nn.Conv3d,
    (1, True): nn.ConvTranspose1d,
    (2, True): nn.ConvTranspose2d,
    (3, True): nn.ConvTranspose3d,
}


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(("dims", "transposed"), list(CONVS))
def test_after_a_convolution(dims: int, transposed: bool, groups: int, bias: bool, affine: bool) -> None:
    conv = CONVS[dims, transposed](4, 6, 3, stride=2, padding=1, groups=groups, bias=bias)
    model = stirred(nn.Sequential(conv, NORMS[dims](6, affine=affine)))
    gm = check(model, input_of(dims))
    assert list(gm.state_dict()) == ["0.weight", "0.bias"]
    assert [node.target for node in gm.graph.nodes if node.op == "call_module"] == ["0"]


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular"])
def test_after_a_convolution_any_padding_will_do(padding_mode: str) -> None:
    conv = nn.Conv2d(4, 6, 3, padding=1, padding_mode=padding_mode)
    gm = check(stirred(nn.Sequential(conv, nn.BatchNorm2d(6))), input_of(2))
    assert gm.get_submodule("0").padding_mode == padding_mode


@pytest.mark.parametrize("bias", [True, False])
def test_after_a_linear_layer_on_two_axes(bias: bool) -> None:
    check(stirred(nn.Sequential(nn.Linear(4, 6, bias=bias), nn.BatchNorm1d(6))), input_of(0))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_before_a_convolution_without_padding(dims: int, groups: int, bias: bool) -> None:
    conv = CONVS[dims, False](4, 6, 3, groups=groups, bias=bias)
    gm = check(stirred(nn.Sequential(NORMS[dims](4), conv)), input_of(dims))
    assert list(gm.state_dict()) == ["1.weight", "1.bias"]


@pytest.mark.parametrize("padding_mode", ["reflect", "replicate", "circular"])
def test_before_a_convolution_that_pads_with_its_own_values(padding_mode: str) -> None:
    conv = nn.Conv2d(4, 6, 3, padding=1, padding_mode=padding_mode)
    check(stirred(nn.Sequential(nn.BatchNorm2d(4), conv)), input_of(2))


@pytest.mark.parametrize("padding", [1, "same"])
def test_before_a_convolution_with_zero_padding_only_a_scale_is_exact(padding: int | str) -> None:
    model = stirred(nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding=padding)))
    gm = check(model, input_of(2), folds=0)
    assert reasons(gm) == ["_1 pads with zeros, which _0 would not have shifted"]
    model[0].bias = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    model[0].running_mean = torch.zeros(4, dtype=torch.float64)
    check(model, input_of(2))


def test_padding_of_a_kernel_of_one_is_none() -> None:
    check(stirred(nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 1, padding="same"))), input_of(2))
    check(stirred(nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3, padding="valid"))), input_of(2))


def test_before_a_transposed_convolution_only_a_scale_is_exact() -> None:
    model = stirred(
        nn.Sequential(nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, bias=False))
    )
    gm = check(model, input_of(2), folds=0)
    assert reasons(gm) == ["_1 adds _0's shift more often in some positions than in others"]
    model[0].bias = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    model[0].running_mean = torch.zeros(4, dtype=torch.float64)
    assert list(check(model, input_of(2)).state_dict()) == ["1.weight"]


def test_before_a_linear_layer() -> None:
    check(stirred(nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6, bias=False))), input_of(0))


def test_chains_fold_until_nothing_is_left() -> None:
    layers = (nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.BatchNorm2d(6), nn.ReLU())
    gm = check(stirred(nn.Sequential(*layers)), input_of(2), folds=3)
    assert [node.target for node in gm.graph.nodes if node.op == "call_module"] == ["1", "4"]


def test_a_norm_goes_into_the_layer_before_rather_than_the_one_after() -> None:
    model = stirred(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1)))
    last = model[2].weight
    gm = check(model, input_of(2))
    assert gm.get_submodule("2").weight is last
    assert reasons(capture(model, (input_of(2),))) == []


def test_numbers_survive_low_precision() -> None:
    model = stirred(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)))
    half = copy.deepcopy(model).to(torch.bfloat16)
    gm = fx.symbolic_trace(half)
    fold_batch_norm(gm)
    assert gm.get_submodule("0").weight.dtype is torch.bfloat16
    assert gm.get_submodule("0").bias.dtype is torch.bfloat16


def test_gradients_stay_where_they_were_wanted() -> None:
    model = stirred(nn.Sequential(nn.Conv2d(4, 6, 3, bias=False), nn.BatchNorm2d(6)))
    model[0].weight.requires_grad_(False)
    gm = check(model, input_of(2))
    assert not gm.get_submodule("0").weight.requires_grad
    assert not gm.get_submodule("0").bias.requires_grad


def test_the_folded_layer_keeps_its_place_and_takes_the_value_of_the_norm() -> None:
    gm = capture(stirred(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6))), (input_of(2),))
    conv, norm = (node for node in gm.graph.nodes if node.op == "call_module")
    place = conv.meta["source"], conv.meta["module_path"]
    norm.meta["value"] = TensorInfo((1, 2, 3), torch.float16)
    fold_batch_norm(gm)
    assert (conv.meta["source"], conv.meta["module_path"]) == place
    assert conv.meta["value"] == TensorInfo((1, 2, 3), torch.float16)


class Functional(nn.Module):
    """conv and batch norm as functions of parameters and buffers."""

    def __init__(self, *, bias: bool, flag: bool | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4, 3, 3))
        self.bias = nn.Parameter(torch.randn(6)) if bias else None
        self.gamma = nn.Parameter(torch.randn(6))
        self.register_buffer("mean", torch.randn(6))
        self.register_buffer("var", torch.rand(6) + 0.5)
        self.flag = flag

    def forward(self, x: Tensor) -> Tensor:
        y = F.conv2d(x, self.weight, self.bias, padding=1)
        flag = self.training if self.flag is None else self.flag
        return F.batch_norm(y, self.mean, self.var, weight=self.gamma, training=flag, eps=1e-3)


@pytest.mark.parametrize("bias", [True, False])
def test_functions_of_parameters(bias: bool) -> None:
    gm = check(Functional(bias=bias).double().eval(), input_of(2))
    assert gm.state_dict().keys() == {"weight", "bias"}
    assert {node.target for node in gm.graph.nodes if node.op == "get_attr"} == {"weight", "bias"}


def test_a_functional_norm_in_training_mode_stays() -> None:
    gm = capture(Functional(bias=True, flag=True).double().eval(), (input_of(2),))
    assert fold_batch_norm(gm) == 0
    assert reasons(gm) == ["batch_norm is in training mode"]


def test_a_bias_gets_a_name_of_its_own() -> None:
    class Taken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 4, 1, 1))
            self.bias = nn.Parameter(torch.randn(1))
            self.bn = nn.BatchNorm2d(6)

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(F.conv2d(x, self.weight)) * self.bias

    gm = check(stirred(Taken()), input_of(2))
    assert gm.state_dict().keys() == {"weight", "bias", "bias_folded"}


def test_a_norm_that_follows_two_layers_folds_into_both() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.bn = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.one(x)) + self.bn(self.two(x))

    gm = check(stirred(Shared()), input_of(2), folds=2)
    assert "bn.weight" not in gm.state_dict()


def test_a_norm_that_only_one_layer_takes_in_stays_for_the_other() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.conv(x)) + self.bn(x)

    gm = check(stirred(Shared()), input_of(2))
    assert "bn.weight" in gm.state_dict()


def test_tied_weights_are_untied_where_one_is_folded() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.bn = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
            self.two.weight = self.one.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.bn(self.one(x)) + self.two(x)

    check(stirred(Tied()), input_of(2))
