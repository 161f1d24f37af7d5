"""One graph for both modes: what differs follows the mode, and what cannot is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from sparsebit.errors import CaptureError, SpecializationWarning
from sparsebit.graph.capture import CapturedModule, ModeConstant, capture
from sparsebit.graph.capture.modes import Differs, compare, is_removable, merge_modes
from sparsebit.graph.functional import check_branch
from tests.graph.capture.nets import Dropping

X = torch.randn(3, 4)


def recorded(build: Callable[[fx.Graph, fx.Node], Any]) -> fx.Graph:
    """A graph of one input, built by a function."""
    graph = fx.Graph()
    graph.output((build(graph, graph.placeholder("x")),))
    return graph


def in_training(path: str) -> bool:
    return True


def call(function: Any, *args: Any, **kwargs: Any) -> Callable[[fx.Graph, fx.Node], fx.Node]:
    """Builds one call; "x" stands for the input and "-x" for its negative."""

    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        def resolve(item: Any) -> Any:
            if isinstance(item, list):
                return [resolve(part) for part in item]
            return x if item == "x" else graph.call_function(torch.neg, (x,)) if item == "-x" else item

        return graph.call_function(function, tuple(resolve(item) for item in args), kwargs)

    return build


def clamp(low: Any) -> fx.Graph:
    return recorded(lambda graph, x: graph.call_function(torch.clamp, (x, low), {"max": 3}))


def constants_of(graph: fx.Graph) -> list[tuple[Any, Any]]:
    found = [node.meta["mode_constant"] for node in graph.nodes if "mode_constant" in node.meta]
    return [(constant.when_training, constant.when_evaluating) for constant in found]


# -- merging two recordings ------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_a_constant_that_differs_is_read_from_a_module(training: bool) -> None:
    graph = clamp(0.1)
    assert merge_modes(graph, clamp(0.2), lambda path: training) is None
    assert constants_of(graph) == [(0.1, 0.2) if training else (0.2, 0.1)]
    node = next(node for node in graph.nodes if node.target is torch.clamp)
    assert isinstance(node.args[1], fx.Node) and node.args[1].op == "call_module"
    assert node.kwargs == {"max": 3}
    graph.lint()


def test_equal_recordings_stay_as_they_are() -> None:
    graph = clamp(0.1)
    before = str(graph)
    assert merge_modes(graph, clamp(0.1), in_training) is None and str(graph) == before


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (call(torch.sum, "x", (0, 1)), call(torch.sum, "x", (0, 2))),
        (call(torch.cat, ["x", "x"], dim=0), call(torch.cat, ["x", "x"], dim=1)),
        (call(torch.clamp, "x", True), call(torch.clamp, "x", 1)),
    ],
    ids=["in a tuple", "keyword", "equal but of another type"],
)
def test_constants_are_found_wherever_they_are(one: Any, two: Any) -> None:
    graph = recorded(one)
    assert merge_modes(graph, recorded(two), in_training) is None
    assert len(constants_of(graph)) == 1
    graph.lint()


@pytest.mark.parametrize(
    ("one", "two", "text"),
    [
        (call(torch.relu, "x"), call(F.gelu, "x"), "relu in one run, gelu in the other"),
        (call(torch.relu, "x"), lambda g, x: x, "relu in one run, output in the other"),
        (call(torch.sub, "x", 1), call(torch.sub, "x", "x"), "1 in one run, x in the other"),
        (
            call(torch.sum, "x", (0, 1)),
            call(torch.sum, "x", (0,)),
            r"\(0, 1\) in one run, \(0,\) in the other",
        ),
        (call(torch.mul, "x", "-x"), call(torch.mul, "-x", "x"), "an operator has different inputs"),
    ],
)
def test_programs_that_part_leave_the_graph_unchanged_and_say_where(one: Any, two: Any, text: str) -> None:
    graph = recorded(one)
    before = str(graph)
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(merge_modes(graph, recorded(two), in_training))
    assert str(graph) == before


def drop(graph: fx.Graph, x: fx.Node, **options: Any) -> fx.Node:
    return graph.call_function(F.dropout, (x, 0.5), options)


def with_dropout(g: fx.Graph, x: fx.Node) -> fx.Node:
    dropped = drop(g, g.call_function(torch.relu, (x,)), training=True)
    return g.call_function(torch.add, (dropped, g.call_function(torch.neg, (dropped,))))


def without_dropout(g: fx.Graph, x: fx.Node) -> fx.Node:
    relu = g.call_function(torch.relu, (x,))
    return g.call_function(torch.add, (relu, g.call_function(torch.neg, (relu,))))


@pytest.mark.parametrize("training", [True, False])
def test_a_dropout_that_one_mode_leaves_out_follows_the_mode(training: bool) -> None:
    one, two = (with_dropout, without_dropout) if training else (without_dropout, with_dropout)
    graph = recorded(one)
    assert merge_modes(graph, recorded(two), lambda path: training) is None
    dropouts = [node for node in graph.nodes if node.target is F.dropout]
    assert len(dropouts) == 1 and len(dropouts[0].users) == 2, "one for all its readers"
    assert dropouts[0].args[1] == 0.5 and isinstance(dropouts[0].kwargs["training"], fx.Node)
    assert constants_of(graph) == [(True, False)]
    graph.lint()


def test_unused_results_may_differ() -> None:
    def with_draw(g: fx.Graph, x: fx.Node) -> fx.Node:
        g.call_function(torch.rand, ((1,),))
        g.call_function(check_branch, (True, True, "here"))
        return g.call_function(torch.relu, (x,))

    assert (
        merge_modes(
            recorded(with_draw), recorded(lambda g, x: g.call_function(torch.relu, (x,))), in_training
        )
        is None
    )


def test_differing_constants_are_listed_and_nothing_is_changed() -> None:
    graph = clamp(0.1)
    before = str(graph)
    found = compare(graph, clamp(0.2)).constants
    assert [(node.target, here, there) for node, _, here, there in found] == [(torch.clamp, 0.1, 0.2)]
    with pytest.raises(Differs, match="clamp in one run, output in the other"):
        compare(graph, recorded(lambda g, x: x))
    assert str(graph) == before


def test_what_is_removable() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    written = graph.call_function(torch.Tensor.add_, (x, 1))
    written.meta["mutates"] = True
    assert is_removable(graph.call_function(torch.relu, (x,))) and is_removable(graph.get_attr("weight"))
    kept = (x, written, graph.call_module("conv", (x,)), graph.call_function(check_branch, (True, True, "")))
    assert not any(is_removable(node) for node in kept)


# -- models ----------------------------------------------------------------------------------------


class Leaving(nn.Module):
    """Leaves the dropout out in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        if self.training:
            x = F.dropout(x, 0.5)
        return x + x.sigmoid()


class TwoOwners(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = Dropping(), Dropping()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def agree(graph: nn.Module, model: nn.Module) -> bool:
    results = []
    for module in (graph, model):
        torch.manual_seed(3)
        results.append(module(X))
    return torch.equal(*results)


@pytest.mark.parametrize("kind", [Dropping, Leaving, TwoOwners])
@pytest.mark.parametrize("captured_in", [True, False])
def test_a_graph_follows_the_mode_whichever_it_was_captured_in(
    kind: type[nn.Module], captured_in: bool
) -> None:
    model = kind().train(captured_in)
    graph = capture(model, X)
    assert graph.training is captured_in
    for mode in (captured_in, not captured_in, captured_in):
        graph.train(mode), model.train(mode)
        assert agree(graph, model)
    assert not torch.equal(model.eval()(X), model.train()(X)), "the modes do differ"


def test_mode_constants_belong_to_the_module_that_asked() -> None:
    model = TwoOwners().eval()
    graph = capture(model, X)
    owners = {
        name.rpartition(".")[0] for name, module in graph.named_modules() if isinstance(module, ModeConstant)
    }
    assert owners == {"encoder", "head"}
    for parts in ((True, False), (False, True)):
        for part, mode in zip(("encoder", "head"), parts, strict=True):
            graph.get_submodule(part).train(mode)
            model.get_submodule(part).train(mode)
        assert agree(graph, model)


@pytest.mark.parametrize("root", [True, False])
def test_a_part_that_was_in_the_other_mode_follows_the_mode_too(root: bool) -> None:
    model = TwoOwners().train(root)
    model.encoder.train(not root)
    graph = capture(model, X)
    assert agree(graph, model)
    for mode in (not root, root):
        graph.train(mode), model.train(mode)
        assert agree(graph, model)


class AuxiliaryHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head, self.auxiliary = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        x = self.body(x)
        return (self.head(x), self.auxiliary(x)) if self.training else self.head(x)


@pytest.mark.parametrize(
    ("captured_in", "wanted", "hint"),
    [(True, "evaluation", "call model.eval()"), (False, "training", "call model.train()")],
)
def test_a_switch_that_would_change_the_structure_is_refused(
    captured_in: bool, wanted: str, hint: str
) -> None:
    graph = capture(AuxiliaryHead().train(captured_in), X)
    with pytest.raises(CaptureError, match=f"this graph cannot switch to {wanted} mode") as error:
        graph.train(not captured_in)
    assert "in one run" in str(error.value.where) or "one run has more operations" in str(error.value.where)
    assert hint in str(error.value.hint) and "keep_operations()" in str(error.value.hint)
    assert graph.training is captured_in and graph.train(captured_in) is graph, "staying is allowed"


def test_keep_operations_lets_the_layers_alone_follow_the_mode() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), AuxiliaryHead()).eval()
    graph = capture(model, X)
    graph.keep_operations()
    assert graph.train().training and graph.get_submodule("0").training
    assert isinstance(graph(X), Tensor), "the outputs are those of evaluation mode"
    assert torch.equal(graph.eval()(X), model.eval()(X))


def test_a_graph_that_cannot_switch_is_captured_again_and_still_cannot() -> None:
    graph = capture(AuxiliaryHead().eval(), X)
    again = capture(nn.Sequential(graph, nn.ReLU()).eval(), X)
    assert torch.equal(again(X), graph(X).relu())
    with pytest.raises(CaptureError, match="cannot switch to training mode"):
        again.train()
    graph.keep_operations()
    assert capture(graph, X).train().training


class ReadsMore(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.a = nn.Linear(4, 4), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x) if self.training else self.last(x) * self.a


def test_a_tensor_that_one_mode_reads_is_named_with_the_line_that_reads_it() -> None:
    conflict = str(capture(ReadsMore().eval(), X).mode_conflict)
    assert "self.last(x) * self.a" in conflict and "only one of the modes reads a" in conflict


class RandomLayerDrop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.rand([]) < 0.001:
            return x
        return self.linear(x)


def test_a_random_choice_of_the_other_mode_is_warned_about_at_the_switch() -> None:
    graph = capture(RandomLayerDrop().eval(), X)
    with pytest.warns(
        SpecializationWarning,
        match=r"in training mode the captured graph fixed:\n.*a random choice was fixed",
    ):
        graph.train()
    assert graph.training
    with pytest.warns(SpecializationWarning, match="in evaluation mode the captured graph fixed"):
        graph.eval()


def test_a_random_choice_of_the_captured_mode_is_warned_about_at_once() -> None:
    with pytest.warns(SpecializationWarning, match="a random choice was fixed: a branch on a tensor's value"):
        capture(RandomLayerDrop().train(), X)


class DataInTraining(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.sum() > 1e9:
            return x
        return x * 2


def test_a_data_branch_in_the_other_mode_is_a_note_and_no_refusal() -> None:
    graph = capture(DataInTraining().eval(), X)
    assert [note.kind for note in graph.capture_report.notes] == ["mode"]
    with pytest.warns(
        SpecializationWarning,
        match="a branch on a tensor's value was fixed to its value for the example inputs",
    ):
        graph.train()


def test_a_mode_that_fails_makes_the_switch_refused_with_the_line() -> None:
    class FailsInTraining(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                raise NotImplementedError("inference only")
            return x * 2

    graph = capture(FailsInTraining().eval(), X)
    assert torch.equal(graph(X), X * 2)
    with pytest.raises(CaptureError) as error:
        graph.train()
    assert 'raise NotImplementedError("inference only")' in str(error.value.where)


def test_a_mode_constant_shows_both_values() -> None:
    constant = ModeConstant(0.5, 0.0)
    assert constant() == 0.5 and constant.eval()() == 0.0
    assert repr(constant) == "ModeConstant(train=0.5, eval=0.0)"


class Tuples(nn.Module):
    """A constant of another kind than a number follows the mode too."""

    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x[None], scale_factor=2.0, mode="nearest" if self.training else "linear").sum(-1)


def test_constants_need_not_be_numbers() -> None:
    model = Tuples().eval()
    graph = capture(model, X)
    assert isinstance(graph, CapturedModule) and torch.equal(graph(X), model(X))
    assert torch.equal(graph.train()(X), model.train()(X))
