"""The same arguments, whichever way a call is written."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparsebit.graph.ops import OPS, OpCall, bind
from sparsebit.graph.ops.binding import _canonical
from tests.graph.ops.forms import (
    FORMS,
    IMAGE,
    B,
    X,
    aten,
)
from tests.graph.ops.sampling import (
    Sample,
    boolean,
    one_node,
    parameter,
    real,
    record_values,
    sample,
)


def plain(call: OpCall, name: str) -> object:
    """An argument in a form that compares: nodes as shapes, lists as tuples, equal repeats as one."""
    value = call.arguments[name]
    if isinstance(value, str) and call.module is not None and value.startswith("layer."):
        return tuple(call.owner.state_dict()[value].shape)
    return _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, fx.Node):
        return tuple(value.meta["value"].shape)
    if isinstance(value, (tuple, list)):
        items = tuple(_plain(item) for item in value)
        return items[0] if len(set(items)) == 1 else items
    return value


@pytest.mark.parametrize("name", FORMS)
def test_every_way_to_write_a_call_binds_alike(name: str) -> None:
    names, cases = FORMS[name]
    expected = None
    for case in cases:
        call = one_node(case).call
        assert call.spec.name == name
        got = {argument: plain(call, argument) for argument in names}
        expected = expected or got
        assert got == expected, case.call


@pytest.mark.parametrize("name", FORMS)
def test_every_way_to_write_a_call_has_the_same_activations(name: str) -> None:
    def shapes(case: Sample) -> list[object]:
        return [_plain(node) for node in one_node(case).call.activations]

    first, *others = FORMS[name][1]
    assert all(shapes(other) == shapes(first) for other in others)


@pytest.mark.parametrize("name", OPS)
def test_aten_overloads_carry_what_the_roles_name(name: str) -> None:
    """The first activation and the weight are arguments of each aten overload, under some known name."""
    spec = OPS[name]
    for target in spec.targets:
        if not (isinstance(target, str) and target.startswith("aten::")):
            continue
        packet = getattr(aten, target.removeprefix("aten::").partition(".")[0], None)
        for overload in packet.overloads() if packet is not None else ():
            schema = getattr(packet, overload)._schema
            label = f"{target}.{overload}"
            if (
                any(a.is_out for a in schema.arguments)
                or label in ODD_OVERLOADS
                or has_other_row(name, label)
            ):
                continue
            names = [_canonical(spec, argument.name) for argument in schema.arguments]
            if (
                names
                and names[0] not in spec.parameters
                and spec.parameters[:1]
                and spec.parameters[0] not in names
            ):
                names[0] = spec.parameters[0]
            wanted = {*spec.activations[:1], *filter(None, (spec.weight,))}
            assert wanted <= set(names) or skipped(schema), f"{schema}"


# Other arguments altogether; unheard of.
ODD_OVERLOADS = {"aten::einsum.sublist", "aten::repeat_interleave.Tensor"}


def has_other_row(name: str, overload: str) -> bool:
    """Whether this very overload belongs to another operator."""
    return any(overload in (*spec.targets, *spec.overloads) for spec in OPS.values() if spec.name != name)


def skipped(schema: Any) -> bool:
    """Overloads on Python scalars and strings exist for TorchScript; no graph of tensors holds them."""
    return not any("Tensor" in str(argument.type) for argument in schema.arguments)


def test_module_attributes_become_arguments() -> None:
    gm = fx.symbolic_trace(
        nn.Sequential(nn.Conv2d(4, 6, 3, padding="same", groups=2, padding_mode="reflect"))
    )
    call = bind(gm, next(n for n in gm.graph.nodes if n.op == "call_module"))
    assert call is not None and isinstance(call.module, nn.Conv2d)
    assert call.arguments["weight"] == "0.weight" == call.weight_name
    assert call.bias_name == "0.bias"
    assert call.arguments["padding"] == "same" and call.arguments["groups"] == 2
    assert call.arguments["padding_mode"] == "reflect"
    assert [node.op for node in call.activations] == ["placeholder"]


def test_absent_and_computed_tensors_have_no_name() -> None:
    without = one_node(sample(nn.Conv2d(4, 6, 3, bias=False), IMAGE)).call
    assert without.weight_name == "layer.weight" and without.bias_name is None
    computed = one_node(sample(F.conv2d, IMAGE, real(6, 4, 3, 3))).call
    assert computed.weight_name is None
    assert len(computed.activations) == 1, "a computed weight is still no activation"


def test_a_parameter_in_a_product_is_its_weight_and_a_table_is_not() -> None:
    product = one_node(sample(torch.matmul, X, parameter(6, 3))).call
    assert product.weight_name == "weight1" and len(product.activations) == 1
    both = one_node(sample(torch.matmul, X, real(6, 3))).call
    assert both.weight_name is None and len(both.activations) == 2

    class Rotary(nn.Module):
        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(6, 3))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.table

    gm = fx.symbolic_trace(Rotary())
    call = bind(gm, next(n for n in gm.graph.nodes if n.op == "call_function"))
    assert call is not None and call.weight_name is None and len(call.activations) == 2


def test_transposed_linear_layers_show_weight_and_bias() -> None:
    call = one_node(sample(torch.addmm, B, real(5, 4), parameter(4, 6))).call
    assert (call.weight_name, call.bias_name) == ("weight2", "weight0")
    assert call.spec.weight_axes == (1, 0)
    assert [node.op for node in call.activations] == ["placeholder"]


@pytest.mark.parametrize(
    ("case", "inplace"),
    [
        (sample(F.relu, X, inplace=True), True),
        (sample(F.relu, X), False),
        (sample(nn.ReLU(inplace=True), X), True),
        (sample(nn.ReLU(), X), False),
        (sample(torch.relu_, X), True),
        (sample(torch.Tensor.add_, X, 1), True),
        (sample(aten.add_.Tensor, X, 1), True),
        (sample(operator.iadd, X, 1), True),
        (sample(torch.Tensor.__iadd__, X, 1), True),
        (sample(operator.and_, boolean(3), boolean(3)), False),
        (sample(torch.Tensor.__and__, boolean(3), boolean(3)), False),
        (sample(torch.Tensor.__radd__, X, 1), False),
    ],
)
def test_inplace_calls_are_recognised(case: Sample, inplace: bool) -> None:
    assert one_node(case).call.inplace is inplace


def test_methods_of_a_symbolic_trace_bind() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(x.size(0), -1).softmax(dim=1).T

    gm = record_values(fx.symbolic_trace(Net()), X)
    calls = [bind(gm, node) for node in gm.graph.nodes if node.op.startswith("call_")]
    assert [call.spec.name for call in calls if call] == ["size", "reshape", "softmax", "t"]
    assert calls[1] is not None and isinstance(calls[1].arguments["shape"], tuple)
    assert calls[2] is not None and calls[2].arguments["dim"] == 1


def test_unknown_nodes_bind_to_nothing() -> None:
    gm = fx.symbolic_trace(nn.Sequential(nn.ReLU()))
    assert [bind(gm, node) is None for node in gm.graph.nodes] == [True, False, True]
