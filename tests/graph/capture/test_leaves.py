"""Which modules stay whole: torch's own, DropPath-like ones, scripted ones, and those asked for."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import CaptureError
from sparsebit.graph.capture import capture
from sparsebit.graph.capture.leaves import (
    OPENED,
    find_leaves,
    has_hooks,
    is_stochastic_leaf,
    is_torch_leaf,
    torch_base,
    without_hooks,
)

X = torch.randn(2, 4)


class OnlyInit(nn.Linear):
    """A preset of a torch module: still that module."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.note = "mine"

    def extra_repr(self) -> str:
        return "preset"

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)


class OwnForward(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


class OwnHelper(nn.Conv2d):
    """Overrides what the base's forward calls."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return super()._conv_forward(input, weight * 2, bias)


class NewMethod(nn.Linear):
    def spectral_radius(self) -> float:
        return 1.0


class NewMethodBelow(OwnForward):
    pass


class DropPath(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rand(len(x), 1) if self.training else x


class Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (nn.Linear, nn.Linear),
        (OnlyInit, nn.Linear),
        (NewMethod, nn.Linear),
        (OwnForward, None),
        (NewMethodBelow, None),
        (OwnHelper, None),
        (Square, None),
        (nn.Module, None),
        (nn.modules.batchnorm.SyncBatchNorm, nn.SyncBatchNorm),
    ],
)
def test_a_subclass_is_the_torch_module_whose_methods_it_leaves_alone(kind: type, base: type | None) -> None:
    assert torch_base(kind) is base


def test_a_subclass_that_changes_the_computation_is_opened() -> None:
    conv = OwnHelper(3, 4, 1).eval()
    model = nn.Sequential(conv)
    x = torch.randn(1, 3, 4, 4)
    graph = capture(model, x)
    assert not any(node.op == "call_module" for node in graph.graph.nodes)
    assert torch.equal(graph(x), model(x))


@pytest.mark.parametrize("kind", OPENED)
def test_containers_and_what_hides_operators_are_no_leaves(kind: type) -> None:
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    assert not is_torch_leaf(module)


def test_a_parametrized_module_is_no_leaf() -> None:
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    assert not is_torch_leaf(linear) and is_torch_leaf(nn.Linear(4, 4))


def hook(*_: Any) -> None: ...


@pytest.mark.parametrize(
    "register",
    [
        "register_forward_hook",
        "register_forward_pre_hook",
        "register_full_backward_hook",
        "register_full_backward_pre_hook",
    ],
)
def test_hooks_are_seen_and_left_off_a_copy(register: str) -> None:
    module = nn.Linear(4, 4)
    getattr(module, register)(hook)
    assert has_hooks(module) and not is_torch_leaf(module)
    bare = without_hooks(module)
    assert not has_hooks(bare) and has_hooks(module)
    assert bare.weight is module.weight and type(bare) is nn.Linear


@pytest.mark.parametrize(
    ("module", "expected"),
    [(DropPath(), True), (Square(), False), (nn.Sequential(DropPath()), False), (nn.Linear(2, 2), False)],
)
def test_drop_path_is_a_leaf_because_it_asks_for_the_mode(module: nn.Module, expected: bool) -> None:
    assert is_stochastic_leaf(module) is expected


def test_a_drop_path_with_state_or_hooks_is_opened() -> None:
    counted = DropPath()
    counted.register_buffer("calls", torch.zeros(1))
    hooked = DropPath()
    hooked.register_forward_hook(hook)
    assert not is_stochastic_leaf(counted) and not is_stochastic_leaf(hooked)


def test_a_drop_path_follows_the_mode_of_the_graph() -> None:
    model = nn.Sequential(nn.Linear(4, 4), DropPath()).eval()
    graph = capture(model, X)
    assert torch.equal(graph(X), model(X))
    graph.train(), model.train()
    torch.manual_seed(0)
    got = graph(X)
    torch.manual_seed(0)
    assert torch.equal(got, model(X)) and not torch.equal(got, model.eval()(X))


class AttentionCore(nn.Module):
    """No state, but not DropPath-like either: a matmul and a softmax are inside."""

    def forward(self, q: Tensor) -> Tensor:
        weights = F.dropout(torch.softmax(q @ q.transpose(-1, -2), -1), 0.1, self.training)
        return weights @ q


def test_a_stateless_module_with_operators_inside_is_opened() -> None:
    graph = capture(nn.Sequential(nn.Linear(4, 4), AttentionCore()).eval(), X)
    assert any(node.target is torch.softmax for node in graph.graph.nodes)


def test_a_module_with_a_forward_of_its_own_is_opened() -> None:
    linear = nn.Linear(4, 4)
    linear.forward = lambda x: nn.Linear.forward(linear, x) * 2  # type: ignore[method-assign,assignment]
    graph = capture(nn.Sequential(linear), X)
    assert torch.equal(graph(X), nn.Linear.forward(linear, X) * 2)
    assert not any(node.op == "call_module" for node in graph.graph.nodes)


# -- find_leaves -----------------------------------------------------------------------------------


def tree() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(Square(), nn.ReLU()), DropPath()).eval()


def names_of(model: nn.Module, whole: set[int]) -> list[str]:
    return [name for name, module in model.named_modules() if id(module) in whole]


def test_leaves_are_found_by_name() -> None:
    model = tree()
    assert names_of(model, find_leaves(model).ids) == ["0", "1.1", "2"]
    assert names_of(model, find_leaves(model, ["1"]).ids) == ["0", "1", "1.1", "2"]
    assert names_of(model, find_leaves(model, ["1.*"]).ids) == ["0", "1.0", "1.1", "2"]


@pytest.mark.parametrize("pattern", ["nothing", "", "1.2", "SEQUENTIAL"])
def test_a_pattern_that_matches_nothing_is_an_error(pattern: str) -> None:
    with pytest.raises(CaptureError, match=f"skip pattern '{pattern}' matches no module") as error:
        find_leaves(tree(), ["1", pattern])
    assert "encoder.layer.*" in str(error.value.expected) and "named_modules()" in str(error.value.hint)


def test_the_model_itself_is_never_a_leaf() -> None:
    assert find_leaves(nn.Linear(4, 4)).ids == set()
    graph = capture(nn.Linear(4, 4), X)
    assert [node.op for node in graph.graph.nodes if node.op.startswith("call")] == ["call_function"]


@pytest.mark.parametrize("pattern", ["1", "?"])
def test_a_skipped_module_is_one_node_and_the_models_own_object(pattern: str) -> None:
    model = tree()
    graph = capture(model, X, skip=[pattern])
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_module"] == ["0", "1", "2"]
    assert graph.get_submodule("1") is model[1]  # type: ignore[index]
    assert torch.equal(graph(X), model(X)) and list(graph.state_dict()) == list(model.state_dict())


def test_hooks_on_leaves_and_on_containers_are_told_apart() -> None:
    model = tree()
    for name in ("0", "1", "1.1"):
        model.get_submodule(name).register_forward_hook(hook)
    model.register_forward_hook(hook)
    found = find_leaves(model)
    assert list(found.hooked) == ["0", "1.1"] and found.with_hooks == ["", "0", "1", "1.1"]
    assert names_of(model, found.ids) == ["2"]


def test_torchs_own_hooks_are_not_the_users() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates it
        model = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)))
    found = find_leaves(model)
    assert found.with_hooks == [] and found.hooked == {} and found.ids == set()


def scripted(module: nn.Module) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates it
        return torch.jit.script(module)


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


def test_a_scripted_module_is_one_node() -> None:
    model = Wrapper(scripted(nn.Linear(4, 4))).eval()
    graph = capture(model, X)
    assert [str(node.target) for node in graph.graph.nodes if node.op == "call_module"] == ["inner"]
    assert torch.equal(graph(X), model(X)) and list(graph.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("inner", [nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.ReLU()), Square()])
def test_a_scripted_module_without_state_is_one_node(inner: nn.Module) -> None:
    model = Wrapper(scripted(inner)).eval()
    assert torch.equal(capture(model, X)(X), model(X))
