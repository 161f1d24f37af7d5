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
from tests.graph.ops.sampling import (
    Sample,
    boolean,
    integer,
    one_node,
    parameter,
    positive,
    real,
    record_values,
    sample,
)

aten = torch.ops.aten
X, IMAGE, INDEX = real(2, 4, 6), real(2, 4, 8, 8), integer(2, 5)
W, B = parameter(6, 4, 3, 3), parameter(6)
SCALE, SHIFT, MEAN, VAR = parameter(4), parameter(4), real(4), positive(4)
TABLE = parameter(7, 4)


def conv2d() -> nn.Conv2d:
    layer = nn.Conv2d(4, 6, 3, stride=2, padding=1)
    layer.weight, layer.bias = W, B
    return layer


def with_parameters(layer: Any, **tensors: Tensor) -> Any:
    for name, tensor in tensors.items():
        setattr(layer, name, tensor)
    return layer


# Ways to write one call; the arguments named must come out the same from all of them.
FORMS: dict[str, tuple[tuple[str, ...], tuple[Sample, ...]]] = {
    "conv2d": (
        ("input", "weight", "bias", "stride", "padding", "dilation", "groups"),
        (
            sample(conv2d(), IMAGE),
            sample(F.conv2d, IMAGE, W, B, 2, 1),
            sample(F.conv2d, IMAGE, W, bias=B, stride=(2, 2), padding=[1, 1]),
            sample(F.conv2d, input=IMAGE, weight=W, bias=B, stride=2, padding=1),
            sample(aten.conv2d.default, IMAGE, W, B, [2, 2], [1, 1]),
            sample(aten.convolution.default, IMAGE, W, B, [2, 2], [1, 1], [1, 1], False, [0, 0], 1),
            sample(torch.convolution, IMAGE, W, B, (2, 2), (1, 1), (1, 1), False, (0, 0), 1),
        ),
    ),
    "conv_transpose2d": (
        ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"),
        (
            sample(F.conv_transpose2d, IMAGE, parameter(4, 6, 3, 3), None, 2, 1, 1, 1, 1),
            sample(with_parameters(nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, bias=False)), IMAGE),
            sample(
                aten.convolution.default,
                IMAGE,
                parameter(4, 6, 3, 3),
                None,
                [2, 2],
                [1, 1],
                [1, 1],
                True,
                [1, 1],
                1,
            ),
        ),
    ),
    "linear": (
        ("input", "weight", "bias"),
        (
            sample(with_parameters(nn.Linear(6, 5), weight=parameter(5, 6), bias=parameter(5)), X),
            sample(F.linear, X, parameter(5, 6), parameter(5)),
            sample(aten.linear.default, X, parameter(5, 6), parameter(5)),
        ),
    ),
    "batch_norm": (
        ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"),
        (
            sample(
                with_parameters(
                    nn.BatchNorm1d(4), weight=SCALE, bias=SHIFT, running_mean=MEAN, running_var=VAR
                ).eval(),
                X,
            ),
            sample(F.batch_norm, X, MEAN, VAR, SCALE, SHIFT),
            sample(F.batch_norm, X, weight=SCALE, bias=SHIFT, running_mean=MEAN, running_var=VAR),
            sample(torch.batch_norm, X, SCALE, SHIFT, MEAN, VAR, False, 0.1, 1e-5, True),
            sample(aten.batch_norm.default, X, SCALE, SHIFT, MEAN, VAR, False, 0.1, 1e-5, True),
        ),
    ),
    "instance_norm": (
        ("input", "running_mean", "running_var", "weight", "bias", "eps"),
        (
            sample(with_parameters(nn.InstanceNorm1d(4, affine=True), weight=SCALE, bias=SHIFT), X),
            sample(F.instance_norm, X, None, None, SCALE, SHIFT),
            sample(torch.instance_norm, X, SCALE, SHIFT, None, None, True, 0.1, 1e-5, False),
            sample(aten.instance_norm.default, X, SCALE, SHIFT, None, None, True, 0.1, 1e-5, False),
        ),
    ),
    "layer_norm": (
        ("input", "normalized_shape", "weight", "bias", "eps"),
        (
            sample(with_parameters(nn.LayerNorm(6), weight=parameter(6), bias=parameter(6)), X),
            sample(F.layer_norm, X, (6,), parameter(6), parameter(6)),
            sample(torch.layer_norm, X, (6,), parameter(6), parameter(6), 1e-5),
            sample(aten.layer_norm.default, X, [6], parameter(6), parameter(6)),
            sample(aten.native_layer_norm.default, X, [6], parameter(6), parameter(6), 1e-5),
        ),
    ),
    "group_norm": (
        ("input", "num_groups", "weight", "bias", "eps"),
        (
            sample(with_parameters(nn.GroupNorm(2, 4), weight=SCALE, bias=SHIFT), X),
            sample(F.group_norm, X, 2, SCALE, SHIFT),
            sample(aten.group_norm.default, X, 2, SCALE, SHIFT),
            sample(aten.native_group_norm.default, X, SCALE, SHIFT, 2, 4, 6, 2, 1e-5),
        ),
    ),
    "embedding": (
        ("input", "weight"),
        (
            sample(with_parameters(nn.Embedding(7, 4), weight=TABLE), INDEX),
            sample(F.embedding, INDEX, TABLE),
            sample(torch.embedding, TABLE, INDEX),
            sample(aten.embedding.default, TABLE, INDEX),
        ),
    ),
    "dropout": (
        ("input", "p", "training"),
        (
            sample(nn.Dropout(0.3), X),
            sample(F.dropout, X, 0.3),
            sample(torch.dropout, X, 0.3, True),
            sample(aten.dropout.default, X, 0.3, True),
        ),
    ),
    "softmax": (
        ("input", "dim"),
        (
            sample(nn.Softmax(-1), X),
            sample(F.softmax, X, -1),
            sample(torch.softmax, X, dim=-1),
            sample(torch.Tensor.softmax, X, -1),
            sample(aten.softmax.int, X, -1),
            sample(aten._softmax.default, X, -1, False),
        ),
    ),
    "leaky_relu": (
        ("input", "negative_slope"),
        (
            sample(nn.LeakyReLU(0.2), X),
            sample(F.leaky_relu, X, 0.2),
            sample(F.leaky_relu_, X, 0.2),
            sample(aten.leaky_relu.default, X, 0.2),
        ),
    ),
    "max_pool2d": (
        ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode"),
        (
            sample(nn.MaxPool2d(2, padding=1), IMAGE),
            sample(F.max_pool2d, IMAGE, 2, padding=1),
            sample(torch.max_pool2d, IMAGE, 2, 2, 1),
            sample(aten.max_pool2d.default, IMAGE, [2, 2], [], [1, 1]),
            sample(aten.max_pool2d_with_indices.default, IMAGE, [2, 2], [2, 2], [1, 1]),
        ),
    ),
    "pad": (
        ("input", "pad", "mode"),
        (
            sample(nn.ReflectionPad1d((1, 2)), X),
            sample(F.pad, X, (1, 2), "reflect"),
            sample(aten.reflection_pad1d.default, X, [1, 2]),
        ),
    ),
    "interpolate": (
        ("input", "size", "mode", "align_corners"),
        (
            sample(nn.UpsamplingBilinear2d(size=(9, 9)), IMAGE),
            sample(F.interpolate, IMAGE, (9, 9), mode="bilinear", align_corners=True),
            sample(aten.upsample_bilinear2d.default, IMAGE, [9, 9], True),
        ),
    ),
    "add": (
        ("input", "other", "alpha"),
        (
            sample(operator.add, X, X),
            sample(torch.add, X, X),
            sample(torch.Tensor.add, X, other=X),
            sample(torch.Tensor.add_, X, X),
            sample(aten.add.Tensor, X, X),
        ),
    ),
    "sub": (
        ("input", "other"),
        (
            sample(operator.sub, 1.0, X),
            sample(torch.rsub, X, 1.0),
            sample(torch.Tensor.__rsub__, X, 1.0),
            sample(aten.rsub.Scalar, X, 1.0),
        ),
    ),
    "matmul": (
        ("input", "other"),
        (
            sample(operator.matmul, X, parameter(6, 3)),
            sample(torch.matmul, X, parameter(6, 3)),
            sample(torch.Tensor.matmul, X, other=parameter(6, 3)),
            sample(aten.matmul.default, X, parameter(6, 3)),
        ),
    ),
    "addmm": (
        ("input", "mat1", "mat2", "beta", "alpha"),
        (
            sample(torch.addmm, B, real(5, 4), parameter(4, 6)),
            sample(torch.Tensor.addmm, B, real(5, 4), mat2=parameter(4, 6)),
            sample(aten.addmm.default, B, real(5, 4), parameter(4, 6)),
        ),
    ),
    "mean": (
        ("input", "dim", "keepdim"),
        (
            sample(torch.mean, X, (1, 2), True),
            sample(torch.Tensor.mean, X, dim=(1, 2), keepdim=True),
            sample(torch.mean, X, axis=(1, 2), keepdims=True),
            sample(aten.mean.dim, X, [1, 2], True),
        ),
    ),
    "std": (
        ("input", "dim", "unbiased"),
        (
            sample(torch.std, X, False),
            sample(torch.Tensor.std, X, unbiased=False),
            sample(aten.std.default, X, False),
        ),
    ),
    "reshape": (
        ("input", "shape"),
        (
            sample(torch.reshape, X, (2, -1)),
            sample(torch.Tensor.reshape, X, 2, -1),
            sample(torch.Tensor.view, X, 2, -1),
            sample(torch.Tensor.view, X, (2, -1)),
            sample(aten.view.default, X, [2, -1]),
            sample(aten.reshape.default, X, [2, -1]),
        ),
    ),
    "permute": (
        ("input", "dims"),
        (
            sample(torch.permute, X, (0, 2, 1)),
            sample(torch.Tensor.permute, X, 0, 2, 1),
            sample(torch.Tensor.permute, X, (0, 2, 1)),
            sample(aten.permute.default, X, [0, 2, 1]),
        ),
    ),
    "transpose": (
        ("input", "dim0", "dim1"),
        (
            sample(torch.transpose, X, 1, 2),
            sample(torch.swapaxes, X, axis0=1, axis1=2),
            sample(torch.Tensor.transpose, X, 1, 2),
            sample(aten.transpose.int, X, 1, 2),
        ),
    ),
    "flatten": (
        ("input", "start_dim", "end_dim"),
        (sample(nn.Flatten(), X), sample(torch.flatten, X, 1), sample(aten.flatten.using_ints, X, 1)),
    ),
    "split": (
        ("input", "split_size", "dim"),
        (
            sample(torch.split, X, [1, 3], 1),
            sample(torch.Tensor.split, X, [1, 3], dim=1),
            sample(torch.split_with_sizes, X, [1, 3], 1),
            sample(aten.split_with_sizes.default, X, [1, 3], 1),
        ),
    ),
    "cat": (
        ("tensors", "dim"),
        (
            sample(torch.cat, [X, X], 1),
            sample(torch.cat, [X, X], axis=1),
            sample(aten.cat.default, [X, X], 1),
        ),
    ),
    "expand": (
        ("input", "size"),
        (
            sample(torch.Tensor.expand, real(4, 1), 4, 5),
            sample(torch.broadcast_to, real(4, 1), (4, 5)),
            sample(aten.expand.default, real(4, 1), [4, 5]),
        ),
    ),
    "where": (
        ("condition", "input", "other"),
        (
            sample(torch.where, boolean(6), X, 0.0),
            sample(torch.Tensor.where, X, boolean(6), 0.0),
            sample(aten.where.ScalarOther, boolean(6), X, 0.0),
        ),
    ),
    "to": (
        ("input", "dtype", "device", "other"),
        (
            sample(torch.Tensor.half, X),
            sample(torch.Tensor.to, X, torch.float16),
            sample(torch.Tensor.to, X, dtype=torch.float16),
            sample(torch.Tensor.type, X, torch.float16),
            sample(aten.to.dtype, X, torch.float16),
            sample(aten._to_copy.default, X, dtype=torch.float16),
        ),
    ),
    "arange": (
        ("start", "end", "step"),
        (
            sample(torch.arange, 5),
            sample(torch.arange, 0, 5),
            sample(torch.arange, end=5),
            sample(aten.arange.default, 5),
            sample(aten.arange.start, 0, 5),
        ),
    ),
    "randint": (
        ("low", "high", "size"),
        (
            sample(torch.randint, 9, (2, 3)),
            sample(torch.randint, 0, 9, (2, 3)),
            sample(torch.randint, high=9, size=(2, 3)),
            sample(aten.randint.default, 9, [2, 3]),
        ),
    ),
    "scaled_dot_product_attention": (
        ("query", "key", "value", "attn_mask", "is_causal", "scale"),
        (
            sample(F.scaled_dot_product_attention, X, X, X, None, 0.0, True),
            sample(F.scaled_dot_product_attention, X, X, X, is_causal=True),
            sample(aten.scaled_dot_product_attention.default, X, X, X, is_causal=True),
        ),
    ),
}


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


ODD_OVERLOADS = {
    "aten::einsum.sublist",
    "aten::repeat_interleave.Tensor",
}  # other arguments altogether; unheard of


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
