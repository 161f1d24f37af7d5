"""From targets to operators, and operators from outside the package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparsebit.errors import RegistryError
from sparsebit.graph.functional import AutogradCall
from sparsebit.graph.ops import OPS, OpSpec, bind, find_op, op_name, register_op, unregister_op
from sparsebit.graph.ops.lookup import find_function
from tests.graph.ops.sampling import one_node, real, record_values, sample

aten = torch.ops.aten


class Swish(torch.autograd.Function):
    """An autograd function that the table cannot know."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Scale(nn.Module):
    """A module of the user's, kept whole."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[:, None]


class QuietConv(nn.Conv2d):
    """A torch.nn layer with another name."""


class LoudConv(nn.Conv2d):
    """A torch.nn layer that does something else."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


def swish(x: Tensor, beta: float = 1.0) -> Tensor:
    return x * torch.sigmoid(beta * x)


@pytest.fixture
def registered() -> Iterator[list[str]]:
    """Names put here are taken out again after the test."""
    names: list[str] = []
    yield names
    for name in names:
        unregister_op(name)


def name_of(target: Any, *args: Any) -> str | None:
    graph = fx.Graph()
    node = graph.call_function(
        target, tuple(graph.placeholder(f"x{i}") if a is ... else a for i, a in enumerate(args))
    )
    return op_name(fx.GraphModule(nn.Module(), graph), node)


def module_name(module: nn.Module) -> str | None:
    graph = fx.Graph()
    node = graph.call_module("layer", (graph.placeholder("x"),))
    return op_name(fx.GraphModule(nn.ModuleDict({"layer": module}), graph), node)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (F.relu, "relu"),
        (torch.relu, "relu"),
        (torch.Tensor.relu_, "relu"),
        (aten.relu.default, "relu"),
        (aten.relu, "relu"),
        (aten.relu_.default, "relu"),
        (F.softmax, "softmax"),
        (torch._C._nn.gelu, "gelu"),
        (torch.Tensor.view, "reshape"),
        (aten._unsafe_view.default, "reshape"),
        (torch.Tensor.float, "to"),
        (aten.mm.default, "matmul"),
        (torch.special.expit, "sigmoid"),
        (torch.nn.functional.unfold, "im2col"),
        (torch.Tensor.unfold, "unfold"),
    ],
)
def test_all_worlds_lead_to_one_name(target: Any, name: str) -> None:
    assert name_of(target, ...) == name


def test_arguments_choose_between_operators() -> None:
    assert name_of(torch.max, ..., 1) == "max"
    assert name_of(torch.max, ...) == "max"
    assert name_of(torch.max, ..., ...) == "maximum"
    assert name_of(aten.max.other, ..., ...) == "maximum"
    assert name_of(aten.max.dim, ..., 1) == "max"
    assert name_of(torch.where, ...) == "nonzero"
    assert name_of(torch.where, ..., ..., 0.0) == "where"
    assert name_of(torch.Tensor.view, ..., torch.int32) == "view_dtype"
    assert name_of(getattr, ..., "shape") == "size"
    assert name_of(getattr, ..., "is_sparse") == "getattr"
    assert name_of(aten.convolution.default, ..., ..., None, [1], [0], [1], False, [0], 1) == "conv1d"
    assert name_of(aten.convolution.default, ..., ..., None, [1] * 3, [0] * 3, [1] * 3, True, [0] * 3, 1) == (
        "conv_transpose3d"
    )


def test_a_dimension_computed_in_the_graph_is_no_tensor() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return torch.max(x, x.dim() - 1)

    gm = record_values(fx.symbolic_trace(Net()), real(2, 3))
    assert [op_name(gm, node) for node in gm.graph.nodes if node.op.startswith("call_")] == [
        "dim",
        "sub",
        "max",
    ]


def test_subclasses_are_their_base_unless_they_compute_something_else() -> None:
    assert module_name(QuietConv(3, 3, 1)) == "conv2d"
    assert module_name(LoudConv(3, 3, 1)) is None
    assert module_name(nn.modules.linear.NonDynamicallyQuantizableLinear(3, 3)) == "linear"


def test_modules_nobody_can_import_are_found_by_class_name() -> None:
    class SwinDropPath(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    assert module_name(SwinDropPath()) == "drop_path"


def test_what_calls_nothing_has_no_operator() -> None:
    gm = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))
    assert [op_name(gm, node) for node in gm.graph.nodes] == [None, "linear", None]
    assert name_of(swish, ...) is None and find_function([]) is None


def test_registering_like_a_known_operator(registered: list[str]) -> None:
    spec = register_op(name="swish", targets=(swish,), like="silu", signature="input, beta=1.0")
    registered.append("swish")
    assert spec.elementwise and spec.family == "custom"
    call = one_node(sample(swish, real(2, 4), beta=2.0)).call
    assert call.spec is spec is OPS["swish"]
    assert call.arguments["beta"] == 2.0 and len(call.activations) == 1


def test_registering_a_module_with_a_weight(registered: list[str]) -> None:
    register_op(
        OpSpec(
            name="scale",
            targets=(Scale,),
            signature="input, weight",
            weight="weight",
            elementwise=True,
        )
    )
    registered.append("scale")
    call = one_node(sample(Scale(), real(2, 4, 3))).call
    assert call.weight_name == "layer.weight" and call.arguments["weight"] == "layer.weight"


def test_an_autograd_function_is_found_however_it_is_called(registered: list[str]) -> None:
    register_op(name="swish_function", targets=(Swish,), like="silu")
    registered.append("swish_function")
    assert name_of(Swish.apply, ...) == "swish_function"
    assert name_of(AutogradCall(Swish), ...) == "swish_function"


def test_a_function_can_be_named_instead_of_imported(registered: list[str]) -> None:
    register_op(name="swish", targets=(f"{__name__}.swish",), like="silu")
    registered.append("swish")
    assert name_of(swish, ...) == "swish"


def test_one_overload_can_be_set_apart(registered: list[str]) -> None:
    register_op(name="special_add", targets=(aten.add.Scalar,), like="add")
    registered.append("special_add")
    assert name_of(aten.add.Scalar, ..., 1) == "special_add"
    assert name_of(aten.add.Tensor, ..., ...) == "add"


def test_a_taken_name_is_refused_with_its_holder() -> None:
    with pytest.raises(RegistryError, match=r"operator 'relu' is already taken by <operator relu>"):
        register_op(name="relu", targets=(swish,))


def test_a_taken_target_is_refused_with_its_holder() -> None:
    with pytest.raises(
        RegistryError, match=r"already belongs to operator 'relu'[\s\S]*operator 'my_relu'[\s\S]*replace=True"
    ):
        register_op(name="my_relu", targets=(F.relu,))
    assert "my_relu" not in OPS


def test_replacing_lasts_until_it_is_taken_out() -> None:
    original = OPS["relu"]
    register_op(name="relu", targets=(F.relu,), like="relu", random=True, replace=True)
    assert OPS["relu"].random and find_function(F.relu) is not None and OPS["relu"] is not original
    assert find_function(torch.relu).spec is original  # type: ignore[union-attr]
    unregister_op("relu")
    assert OPS["relu"] is original and find_function(F.relu).spec is original  # type: ignore[union-attr]


def test_a_replaced_target_no_longer_chooses_by_its_arguments() -> None:
    register_op(name="my_max", targets=(torch.max,), like="max", replace=True)
    try:
        assert name_of(torch.max, ..., ...) == "my_max"
    finally:
        unregister_op("my_max")
    assert name_of(torch.max, ..., ...) == "maximum"


def test_an_operator_of_the_library_stays() -> None:
    with pytest.raises(RegistryError, match=r"'linear' is part of the library[\s\S]*replace=True"):
        unregister_op("linear")


@pytest.mark.parametrize("target", ["relu", 3, nn.ReLU()])
def test_a_target_is_a_class_a_function_or_a_qualified_name(target: object) -> None:
    with pytest.raises(RegistryError, match=r"is not a target[\s\S]*operator 'x'"):
        register_op(name="x", targets=(target,), like="relu")


def test_mistakes_in_a_registration_are_explained() -> None:
    with pytest.raises(RegistryError, match=r"no operator named 'linea'[\s\S]*did you mean 'linear'"):
        register_op(name="x", targets=(len,), placed_as="linea")
    with pytest.raises(RegistryError, match="needs a name and targets"):
        register_op(name="x")
    with pytest.raises(RegistryError, match=r"channel: no such field[\s\S]*channels"):
        register_op(name="x", targets=(swish,), channel="keeps")
    with pytest.raises(RegistryError, match="no operator named 'silo'"):
        register_op(name="x", targets=(swish,), like="silo")
    with pytest.raises(RegistryError, match="not both"):
        register_op(OPS["relu"], name="x")
    with pytest.raises(RegistryError, match=r"targets is not a tuple[\s\S]*'torch.relu'"):
        register_op(name="x", targets="torch.relu", like="relu")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("overloads", "max"),
        ("activations", 3),
        ("class_names", None),
        ("signature", "a b"),
        ("placed_as", None),
    ],
)
def test_a_wrong_entry_leaves_nothing_behind(registered: list[str], field: str, wrong: Any) -> None:
    """It can be corrected and registered again, as in a notebook."""
    with pytest.raises(RegistryError, match=field if wrong != "a b" else "signature 'a b' cannot be read"):
        register_op(name="swish", targets=(swish,), like="relu", **{field: wrong})
    with pytest.raises(TypeError):  # found only when it is added
        register_op(name="swish", targets=(swish,), like="relu", class_names=([],))
    registered.append(register_op(name="swish", targets=(swish,), like="relu").name)


def test_a_registered_operator_can_count(registered: list[str]) -> None:
    register_op(name="swish", targets=(swish,), like="silu", macs=lambda call: call.shape("input")[0])
    registered.append("swish")
    graph = one_node(sample(swish, real(5, 4)))
    assert graph.call.macs == 5
    assert bind(graph.gm, graph.node) is not None and find_op(graph.gm, graph.node) is OPS["swish"]
