"""One call of one operator, and the one-node graph around it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.rnn import PackedSequence

from sparsebit.graph.ops import OpCall, bind
from sparsebit.graph.value import describe

_GENERATOR = torch.Generator().manual_seed(0)


@dataclass(frozen=True)
class Sample:
    """Something to call with its arguments. ``runs=False``: looked up, but not safe to run by itself."""

    call: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    runs: bool = True


def sample(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Sample:
    """A sample, written as the call itself would be; a module becomes float64."""
    return Sample(call.double() if isinstance(call, nn.Module) else call, args, kwargs)


def real(*shape: int) -> Tensor:
    """Normal random numbers, all different."""
    return torch.randn(*shape, generator=_GENERATOR, dtype=torch.float64)


def positive(*shape: int) -> Tensor:
    """Numbers between 0.1 and 0.9, where nearly every function is defined."""
    return torch.rand(*shape, generator=_GENERATOR, dtype=torch.float64) * 0.8 + 0.1


def integer(*shape: int, high: int = 7) -> Tensor:
    """Integers from 1 up to ``high``, exclusive."""
    return torch.randint(1, high, shape, generator=_GENERATOR)


def boolean(*shape: int) -> Tensor:
    """Coin tosses."""
    return torch.rand(*shape, generator=_GENERATOR) > 0.5


def distinct(*shape: int) -> Tensor:
    """1, 2, 3, ... in random order: what moves can be followed by its value."""
    count = math.prod(shape)
    return (torch.randperm(count, generator=_GENERATOR) + 1).reshape(shape).double()


def parameter(*shape: int) -> nn.Parameter:
    """A raw parameter; in the graph it becomes a get_attr node."""
    return nn.Parameter(real(*shape))


class Recorder(fx.Interpreter):
    """Runs a graph and notes what every node's result looks like."""

    def run_node(self, n: fx.Node) -> Any:
        """Run one node, then describe its result."""
        result = super().run_node(n)
        n.meta["value"] = describe(result)
        return result


def record_values(gm: fx.GraphModule, *inputs: Any) -> fx.GraphModule:
    """Annotate a graph with the shapes of one run."""
    with torch.no_grad():
        Recorder(gm).run(*inputs)
    return gm


@dataclass
class OneNode:
    """A graph that makes the sampled call and nothing else, with the inputs to run it on."""

    gm: fx.GraphModule
    node: fx.Node
    inputs: list[Any]
    nodes: list[fx.Node]  # the placeholders, in the order of ``inputs``

    @property
    def call(self) -> OpCall:
        """The node, bound; fails if its operator is unknown."""
        call = bind(self.gm, self.node)
        assert call is not None, f"unknown operator: {self.node.format_node()}"
        return call

    def run(self, inputs: list[Any] | None = None, *, seed: int = 0) -> Any:
        """The result on fresh copies of the inputs, from the same state and random numbers every time."""
        torch.manual_seed(seed)
        state = copy.deepcopy(self.gm.state_dict())
        with torch.no_grad():
            result = fx.Interpreter(self.gm).run(*copy.deepcopy(self.inputs if inputs is None else inputs))
        self.gm.load_state_dict(state)
        return result

    def position(self, node: fx.Node) -> int:
        """Which input a placeholder is."""
        return self.nodes.index(node)


def one_node(case: Sample) -> OneNode:
    """The graph of a sample: tensors become placeholders, parameters get_attr nodes, a module call_module."""
    memo: dict[int, Any] = {}  # one tensor given twice stays one
    given_args, given_kwargs = copy.deepcopy(case.args, memo), copy.deepcopy(case.kwargs, memo)
    root, graph = nn.Module(), fx.Graph()
    held: dict[int, fx.Node] = {}
    inputs: list[Any] = []
    nodes: list[fx.Node] = []

    def lift(value: Any) -> Any:
        if isinstance(value, nn.Parameter):
            if id(value) not in held:
                name = f"weight{len(held)}"
                root.register_parameter(name, value)
                held[id(value)] = graph.get_attr(name)
            return held[id(value)]
        if isinstance(value, (Tensor, PackedSequence)):
            if id(value) not in held:
                held[id(value)] = graph.placeholder(f"input{len(inputs)}")
                inputs.append(value)
                nodes.append(held[id(value)])
            return held[id(value)]
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            return type(value)(lift(item) for item in value)
        if isinstance(value, dict):
            return {key: lift(item) for key, item in value.items()}
        return value

    args, kwargs = tuple(lift(a) for a in given_args), {k: lift(v) for k, v in given_kwargs.items()}
    if isinstance(case.call, nn.Module):
        root.add_module("layer", copy.deepcopy(case.call))
        node = graph.call_module("layer", args, kwargs)
    else:
        node = graph.call_function(case.call, args, kwargs)
    graph.output(node)
    gm = fx.GraphModule(root, graph)
    (node,) = (n for n in gm.graph.nodes if n.op.startswith("call_"))
    nodes = [n for n in gm.graph.nodes if n.op == "placeholder"]
    if case.runs:
        torch.manual_seed(0)
        record_values(gm, *copy.deepcopy(inputs))
    return OneNode(gm, node, inputs, nodes)


def tensors(value: Any) -> list[Tensor]:
    """Every tensor of a result, depth first."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors(item)]
    if isinstance(value, dict):
        return [tensor for item in value.values() for tensor in tensors(item)]
    return []
