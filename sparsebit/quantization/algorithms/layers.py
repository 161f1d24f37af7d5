"""The layers of a quantized graph for recovery steps: weight, bias, and the nodes before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from sparsebit.graph.ops import OpCall, bind, find_op
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.passes.edit import set_tensor
from sparsebit.graph.run import run_graph
from sparsebit.progress import progress
from sparsebit.quantization.modules.weights import weights_read
from sparsebit.quantization.quantizers import Quantizer


@dataclass(frozen=True)
class QuantizedLayer:
    """A convolution or linear layer with a quantized weight: a module of the graph, or a function with parameters."""

    gm: GraphModule
    node: Node
    call: OpCall
    weight_path: str
    quantizer: Quantizer

    @property
    def weight(self) -> Tensor:
        """The float weight."""
        return fetch_tensor(self.gm, self.weight_path).detach()

    @property
    def bias(self) -> Tensor | None:
        """The bias, if there is one."""
        return fetch_tensor(self.gm, self.call.bias_name).detach() if self.call.bias_name else None

    @property
    def depthwise(self) -> bool:
        """Whether every channel is convolved separately."""
        groups, weight = self.call.groups, self.weight
        return groups > 1 and groups == weight.shape[0] and weight.shape[1] == 1

    @property
    def transposed(self) -> bool:
        """Whether the weight is [in, out / groups, ...]."""
        return self.call.spec.weight_axes != (0, 1)

    @property
    def new_bias(self) -> str:
        """The name of a bias that is added."""
        if self.node.op == "call_module":
            return f"{self.weight_path.removesuffix('weight')}bias"
        return f"{self.weight_path}_bias"

    def set(self, *, weight: Tensor | None = None, bias: Tensor | None = None) -> QuantizedLayer:
        """Replace the weight or bias. The user's model, which shares the old ones, keeps those."""
        like = fetch_tensor(self.gm, self.weight_path)
        if weight is not None:
            set_tensor(self.gm, self.weight_path, weight.to(like.dtype), like)
        if bias is None:
            return self
        if self.call.bias_name is not None:
            old = fetch_tensor(self.gm, self.call.bias_name)
            set_tensor(self.gm, self.call.bias_name, bias.to(like.dtype), old)
            return self
        set_tensor(self.gm, self.new_bias, bias.to(like.dtype), like)
        if self.node.op != "call_module":
            _pass_bias(self.gm, self.node, self.new_bias)
        call = bind(self.gm, self.node)
        assert call is not None
        return replace(self, call=call)


def _pass_bias(gm: GraphModule, node: Node, path: str) -> None:
    """Pass the bias at a path to a function that was called without one."""
    first = next(n for n in gm.graph.nodes if n.op != "placeholder")
    with gm.graph.inserting_before(first):
        held = gm.graph.get_attr(path)
    if len(node.args) > 2:
        node.update_arg(2, held)
    else:
        node.update_kwarg("bias", held)
    gm.recompile()


def find_quantized_layers(gm: GraphModule) -> Iterator[QuantizedLayer]:
    """All such layers, in order; layers that are called twice, or whose weight is tied, are left out."""
    owners: dict[int, int] = {}
    for module in gm.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    readers: dict[str, list[tuple[Node, Quantizer]]] = {}
    for node in gm.graph.nodes:
        for path, quantizer in weights_read(gm, node):
            readers.setdefault(path, []).append((node, quantizer))
    for path, uses in readers.items():
        (node, quantizer), call = uses[0], bind(gm, uses[0][0])
        if len(uses) != 1 or call is None or quantizer.fake_fused:
            continue
        if call.spec.family not in ("conv", "linear") or owners.get(id(fetch_tensor(gm, path))) != 1:
            continue
        yield QuantizedLayer(gm, node, call, path, quantizer)


def sole_reader(gm: GraphModule, node: Node) -> Node | None:
    """The only node that reads the numbers of this one; readers of its size do not count."""
    readers = [user for user in node.users if (spec := find_op(gm, user)) is None or spec.family != "size"]
    return readers[0] if len(readers) == 1 else None


def result_axis(layer: QuantizedLayer, ndim: int) -> int:
    """The channel axis of a layer's result: the last axis for a linear layer, else the second."""
    return ndim - 1 if layer.call.spec.family == "linear" else ndim - (layer.weight.dim() - 1)


def per_channel(x: Tensor, axis: int, reduce: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply ``reduce``, which gets [C, N], to everything but one axis; returns [C]."""
    return reduce(x.detach().movedim(axis, 0).flatten(1))


def watch(
    gm: GraphModule,
    inputs: Iterable[tuple[tuple[Any, ...], dict[str, Any]]],
    wanted: dict[str, Callable[[Tensor], None]],
    what: str = "measuring",
    shown: bool | None = None,
) -> None:
    """Run the calibration inputs through the graph without switching quantizers, and call the watchers of nodes."""

    def saw(node: Node, value: Any) -> None:
        if node.name in wanted:
            wanted[node.name](value)

    with torch.no_grad():
        for args, kwargs in progress(inputs, what, shown=shown):
            run_graph(gm, args, kwargs, watch=saw)
