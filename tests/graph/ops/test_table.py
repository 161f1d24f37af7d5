"""What the table says of each operator, checked against what the operator does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.nn.utils.rnn import PackedSequence
from torch.utils.flop_counter import FlopCounterMode

from sparsebit.graph.ops import OPS, OpSpec, op_name
from sparsebit.sparse.channels.rules import RULES
from tests.graph.ops.samples import SAMPLES
from tests.graph.ops.sampling import OneNode, one_node, tensors

UNINITIALISED = {"empty", "empty_strided", "empty_like", "new_empty"}
# Samples that multiply and accumulate, though FlopCounterMode passes over them.
UNCOUNTED = {
    ("matmul", 4): 5 * 4,
    ("matmul", 5): 4,
    ("addmv", 0): 5 * 4,
    ("addbmm", 0): 3 * 5 * 4 * 6,
    ("vecdot", 0): 2 * 5 * 4,
    ("bilinear", 0): 5 * (6 * 4 * 3 + 6 * 3),
    ("bilinear", 1): 2 * 5 * (6 * 4 * 3 + 6 * 3),
    ("cdist", 0): 2 * 5 * 6 * 4,
    ("conv_tbc", 0): 7 * 2 * 3 * 4 * 6,
    ("grouped_mm", 0): 8 * 16 * 24,
    ("scaled_dot_product_attention", 1): 2 * 4 * 5 * 5 * (8 + 8),
}
SKIPPED_ON_OLD_TORCH = {"grouped_mm"}


def specs(wanted: Callable[[OpSpec], bool]) -> list[str]:
    """Names of the operators that a claim is about."""
    return [name for name in OPS if name in SAMPLES and wanted(OPS[name])]


def runs(name: str) -> Iterator[OneNode]:
    """The graphs of an operator's samples that can be run."""
    return (one_node(case) for case in SAMPLES[name] if case.runs)


def nudged(tensor: Tensor, where: Any, amount: float) -> Tensor:
    """A copy with the elements at ``where`` changed."""
    changed = tensor.clone()
    if tensor.dtype == torch.bool:
        changed[where] = ~changed[where]
    elif tensor.is_floating_point() or tensor.is_complex():
        changed[where] += amount
    else:
        changed[where] += 1
    return changed


def differs(left: Tensor, right: Tensor) -> Tensor:
    """Where two results of one call are not the same number (two NaNs are)."""
    return ~((left == right) | ((left != left) & (right != right)))


def activation_inputs(graph: OneNode) -> list[int]:
    """Positions of the graph's inputs that its operator calls activations, if they are tensors."""
    found = [graph.position(node) for node in graph.call.activations if node.op == "placeholder"]
    return [i for i in dict.fromkeys(found) if isinstance(graph.inputs[i], Tensor)]


def spreads(graph: OneNode, amount: float) -> bool:
    """Whether some element of an input changes another element of the result than its own."""
    before = tensors(graph.run())
    try:
        full = torch.broadcast_shapes(*(graph.inputs[i].shape for i in activation_inputs(graph)))
    except RuntimeError:  # not element by element, then
        return True
    if not before or any(tuple(result.shape) != tuple(full) for result in before):
        return True
    for i in activation_inputs(graph):
        source = graph.inputs[i]
        for flat in {0, source.numel() // 2, source.numel() - 1}:
            mark = torch.zeros(source.numel(), dtype=torch.bool)
            mark[flat] = True
            where = mark.reshape(source.shape)
            inputs = [*graph.inputs[:i], nudged(source, where, amount), *graph.inputs[i + 1 :]]
            own = where.expand(full)
            if any(
                (differs(a, b) & ~own).any() for a, b in zip(before, tensors(graph.run(inputs)), strict=True)
            ):
                return True
    return False


def channels_touched(graph: OneNode, i: int, channel: int) -> list[set[int]]:
    """Per result, the channels (axis 1) that change when one of an input does; all if sizes differ."""
    source = graph.inputs[i]
    before = tensors(graph.run())
    amount = 1e-3 if graph.call.spec.random else 0.5  # a big step could change how many numbers are drawn
    inputs = [*graph.inputs[:i], nudged(source, (slice(None), channel), amount), *graph.inputs[i + 1 :]]
    touched = []
    for a, b in zip(before, tensors(graph.run(inputs)), strict=True):
        if a.shape != b.shape or a.ndim < 2 or a.shape[1] != source.shape[1]:
            touched.append(set(range(source.shape[1])))
        else:
            touched.append({c for c in range(a.shape[1]) if differs(a[:, c], b[:, c]).any()})
    return touched


def test_every_operator_has_a_sample_and_every_sample_an_operator() -> None:
    assert set(OPS) - set(SAMPLES) - SKIPPED_ON_OLD_TORCH == set()
    assert set(SAMPLES) - set(OPS) == set()


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_are_found_under_their_name(name: str) -> None:
    for case in SAMPLES[name]:
        graph = one_node(case)
        assert op_name(graph.gm, graph.node) == name
        assert graph.call.spec is OPS[name]


@pytest.mark.parametrize("name", specs(lambda spec: True))
def test_required_arguments_are_bound(name: str) -> None:
    spec = OPS[name]
    for case in SAMPLES[name]:
        if case.runs:
            arguments = one_node(case).call.arguments
            assert set(spec.activations) <= set(arguments)
            canonical = [argument for argument in spec.parameters if argument in arguments]
            assert list(arguments)[: len(canonical)] == canonical


@pytest.mark.parametrize("name", specs(lambda spec: spec.elementwise))
def test_elementwise_operators_work_on_each_element_alone(name: str) -> None:
    amounts = (1e-3,) if OPS[name].random else (1e-3, 0.5)
    assert not any(spreads(graph, amount) for graph in runs(name) for amount in amounts)


@pytest.mark.parametrize(
    "name",
    specs(
        lambda s: not (s.elementwise or s.random or s.effect) and s.family != "shape" and bool(s.activations)
    ),
)
def test_other_operators_do_not(name: str) -> None:
    graphs = [graph for graph in runs(name) if activation_inputs(graph)]
    assert not graphs or any(spreads(graph, amount) for graph in graphs for amount in (3.0, -3.0)), (
        "it is elementwise"
    )


@pytest.mark.parametrize("name", specs(lambda spec: spec.channels in ("per_channel", "norm_per_channel")))
def test_kept_channels_stay_apart(name: str) -> None:
    checked = 0
    for graph in runs(name):
        i = activation_inputs(graph)[0]
        if graph.inputs[i].ndim > 1:
            checked += 1
            for channel in range(graph.inputs[i].shape[1]):
                for touched in channels_touched(graph, i, channel):
                    assert touched <= {channel}
    assert checked


def test_every_channel_rule_exists_and_is_used() -> None:
    assert {spec.channels for spec in OPS.values()} - {""} | {"elementwise"} == set(RULES)


# A dropout moves numbers where it counts, which is in evaluation mode; its samples drop.
@pytest.mark.parametrize("name", specs(lambda spec: bool(spec.moves) and spec.family != "dropout"))
def test_moved_numbers_are_those_of_the_first_activation_or_zero(name: str) -> None:
    for graph in runs(name):
        if not graph.call.moves:
            continue
        (source, *_) = graph.call.activations
        known = {n for part in tensors(graph.inputs[graph.position(source)]) for n in numbers(part)} | {0.0}
        (first, *_) = tensors(graph.run()) or [torch.zeros(())]
        assert set(numbers(first)) <= known


def test_interpolation_and_padding_move_numbers_only_with_some_arguments() -> None:
    moves = {
        (name, str(graph.call.arguments.get("mode")), graph.call.arguments.get("value")): graph.call.moves
        for name in ("interpolate", "pad")
        for graph in runs(name)
    }
    assert any(moves.values()) and not all(moves.values())
    for (name, mode, value), answer in moves.items():
        assert answer == (
            mode.startswith("nearest") if name == "interpolate" else mode != "constant" or not value
        )


@pytest.mark.parametrize("name", specs(lambda spec: bool(spec.keeps_zero or spec.moves or spec.bounds)))
def test_what_keeps_zero_gives_zero_for_zero(name: str) -> None:
    for graph in runs(name):
        operands = [i for i in activation_inputs(graph) if graph.inputs[i].is_floating_point()]
        for zeros in ([True] * len(operands), [True] + [False] * (len(operands) - 1)):
            if not operands or not graph.call.keeps_zero(zeros):
                continue
            chosen = [i for i, zero in zip(operands, zeros, strict=True) if zero]
            inputs = [x * 0 if i in chosen else x for i, x in enumerate(graph.inputs)]
            for result in tensors(graph.run(inputs)):
                if result.is_floating_point():
                    assert not result.any(), graph.node.format_node()


@pytest.mark.parametrize("name", specs(lambda spec: bool(spec.homogeneous)))
def test_homogeneous_operators_scale_with_their_input(name: str) -> None:
    for graph in runs(name):
        (i, *_) = activation_inputs(graph)
        inputs = [3 * x if j == i else x for j, x in enumerate(graph.inputs)]
        for before, after in zip(tensors(graph.run()), tensors(graph.run(inputs)), strict=True):
            torch.testing.assert_close(after, 3 * before)


@pytest.mark.parametrize("name", specs(lambda spec: spec.bounds is not None))
def test_bounded_operators_clip_and_do_nothing_else(name: str) -> None:
    checked = 0
    for graph in runs(name):
        if graph.call.bounds is None:
            continue
        checked += 1
        source = graph.inputs[activation_inputs(graph)[0]]
        torch.testing.assert_close(graph.run(), source.clamp(*graph.call.bounds))
    assert checked


@pytest.mark.parametrize("name", specs(lambda spec: not spec.effect))
def test_integer_results_and_several_results_are_said(name: str) -> None:
    for graph in runs(name):
        result = graph.run()
        if OPS[name].several:
            assert isinstance(result, (tuple, list))
        if OPS[name].integers:
            assert not any(part.is_floating_point() for part in tensors(result))


def numbers(tensor: Tensor) -> list[float]:
    """All real numbers in a tensor; of a complex one, both parts."""
    parts = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    return [float(number) for number in parts.flatten().tolist()]


@pytest.mark.parametrize("name", specs(lambda spec: not spec.effect))
def test_views_are_exactly_what_may_share_memory(name: str) -> None:
    def shares(graph: OneNode) -> bool:
        inputs = copy.deepcopy(graph.inputs)
        given = {part.untyped_storage().data_ptr() for value in inputs for part in tensors(value)}
        with torch.no_grad():
            results = tensors(fx.Interpreter(graph.gm).run(*inputs))
        return any(result.numel() and result.untyped_storage().data_ptr() in given for result in results)

    # A recurrent layer hands on the lengths of a packed sequence; that is no view of an activation.
    graphs = [
        g for g in runs(name) if not g.call.inplace and not (g.call.spec.random and is_packed(g.inputs[0:1]))
    ]
    assert not graphs or any(map(shares, graphs)) == OPS[name].view


def is_packed(values: list[Any]) -> bool:
    """Whether the first of some values is a packed sequence."""
    return any(isinstance(value, PackedSequence) for value in values)


@pytest.mark.parametrize("name", specs(lambda spec: spec.name not in UNINITIALISED))
def test_random_operators_are_exactly_those_that_vary(name: str) -> None:
    def varies(graph: OneNode) -> bool:
        first, *others = (tensors(graph.run(seed=seed)) for seed in range(4))
        pairs = [pair for other in others for pair in zip(first, other, strict=True)]
        return any(a.shape != b.shape or bool(differs(a, b).any()) for a, b in pairs)

    assert any(map(varies, runs(name))) == OPS[name].random


@pytest.mark.parametrize("name", specs(lambda spec: spec.weight_axes is not None))
def test_weight_axes_lead_to_the_channels(name: str) -> None:
    """A slice along the output axis feeds one output channel, one along the input axis reads one input."""
    spec = OPS[name]
    assert spec.weight and spec.weight_axes and spec.channel_axis is not None
    checked = 0
    for graph in runs(name):
        call = graph.call
        if call.weight_name is None or call.arguments.get("groups", 1) != 1:
            continue
        checked += 1
        out_axis, in_axis = spec.weight_axes
        before = graph.run()
        changed = with_slice_changed(graph, call.weight_name, out_axis, 1)
        axis = spec.channel_axis % before.ndim
        touched = differs(before, changed).movedim(axis, 0).reshape(before.shape[axis], -1).any(1)
        assert touched.nonzero().flatten().tolist() == [1]
        assert before.shape[axis] == call.shape(spec.weight)[out_axis]
        i = graph.position(call.activations[-1 if spec.family == "matmul" else 0])
        if spec.family != "embedding":
            blind = graph.inputs[i].clone()
            blind.select(spec.channel_axis, 2).zero_()
            inputs = [*graph.inputs[:i], blind, *graph.inputs[i + 1 :]]
            assert torch.equal(
                graph.run(inputs), with_slice_changed(graph, call.weight_name, in_axis, 2, inputs)
            )
    assert checked


def with_slice_changed(
    graph: OneNode, weight: str, axis: int, index: int, inputs: list[Any] | None = None
) -> Tensor:
    """The result after adding to one slice of a parameter."""
    tensor = graph.gm.get_parameter(weight)
    with torch.no_grad():
        saved = tensor.clone()
        tensor.select(axis, index).add_(1.0)
        result = graph.run(inputs)
        tensor.copy_(saved)
    assert isinstance(result, Tensor)
    return result


@pytest.mark.parametrize("name", specs(lambda spec: not spec.effect))
def test_macs_are_half_the_flops_that_torch_counts(name: str) -> None:
    for index, case in enumerate(SAMPLES[name]):
        if not case.runs:
            continue
        graph = one_node(case)
        torch.manual_seed(0)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            fx.Interpreter(graph.gm).run(*copy.deepcopy(graph.inputs))
        expected = counter.get_total_flops() // 2 or UNCOUNTED.get((name, index), 0)
        assert graph.call.macs == expected, graph.node.format_node()
