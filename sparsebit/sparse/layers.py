"""The layers of a graph that have weights: the node, the tensor, and the meaning of its axes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch.fx import GraphModule, Node

from sparsebit.errors import SparsebitError
from sparsebit.graph.ops import OpCall, OpSpec, bind
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.passes.fold_computed_weights import computed_weights
from sparsebit.numerics.finite import is_finite
from sparsebit.sparse.stored_weight import stored_weight

_MOST_HOPS = 8


@dataclass(frozen=True, eq=False)
class WeightedLayer:
    """One weight that a layer multiplies with its input."""

    name: str  # dotted module name, or the parameter's where no module holds it
    node: Node
    call: OpCall
    tensor: str  # qualified name of the weight
    axes: tuple[int, int]  # (output, input) axes of the weight
    calls: list[OpCall]  # all that multiply by the weight along these axes, the first included

    @property
    def flat(self) -> str:
        """The name of its node in the graph."""
        return self.node.name

    @property
    def names(self) -> tuple[str, ...]:
        """Every name a pattern may use for it."""
        return tuple(dict.fromkeys((self.name, self.flat)))


def find_layers(gm: GraphModule) -> list[WeightedLayer]:
    """Every weight with multiply-accumulates, in graph order; a shared weight is listed at its first use."""
    found: dict[int, WeightedLayer] = {}
    for node in gm.graph.nodes:
        call = bind(gm, node) if node.op.startswith("call_") else None
        if call is None or call.spec.macs is None:
            continue
        for tensor, axes in _weights(call):
            weight = fetch_tensor(gm, tensor)
            if (known := found.get(id(weight))) is not None:
                if known.axes == axes and call not in known.calls:
                    known.calls.append(call)
            elif weight.ndim > 1 and weight.is_floating_point():
                found[id(weight)] = WeightedLayer(_layer_name(call, tensor), node, call, tensor, axes, [call])
    return list(found.values())


def layers_without_parameter(gm: GraphModule) -> Iterator[tuple[str, int, str]]:
    """Layers whose weights no mask can hold: their names, their numbers of weights, and the reason."""
    for node, sources in computed_weights(gm).items():
        call = bind(gm, node)
        if call is None or call.spec.macs is None or any(True for _ in _weights(call)):
            continue
        weight = call.arguments[call.spec.weight or ""]
        assert isinstance(weight, Node), node
        yield (
            str(node.meta.get("module_path") or node.name),
            weight.meta["value"].numel,
            f"its weight is computed from {' and '.join(sources)}; make it a parameter first, "
            "as remove_parametrizations and remove_weight_norm do",
        )


def _weights(call: OpCall) -> Iterator[tuple[str, tuple[int, int]]]:
    stored = stored_weight(call.owner, call.arguments.get(call.spec.weight or ""))
    if call.weight_name is not None and call.spec.weight_axes is not None:
        yield call.weight_name, call.spec.weight_axes
    elif stored is not None and call.spec.weight_axes is not None:
        made, read = call.spec.weight_axes
        yield stored.name, (stored.axes[made], stored.axes[read])
    elif call.spec.family == "rnn" and call.module is not None:
        for name, parameter in call.module.named_parameters():
            if parameter.ndim == 2:
                yield f"{call.node.target}.{name}", (0, 1)


def _layer_name(call: OpCall, tensor: str) -> str:
    return str(call.node.target) if call.module is not None else tensor


def makes_outputs(gm: GraphModule) -> set[str]:
    """Names of the nodes that reach the outputs without passing another weight: the classifier."""
    output = next(node for node in gm.graph.nodes if node.op == "output")
    waiting, seen, found = list(output.all_input_nodes), set[Node](), set[str]()
    while waiting:
        node = waiting.pop()
        if node in seen or not node.op.startswith("call_"):
            continue
        seen.add(node)
        call = bind(gm, node)
        if call is not None and call.spec.macs is not None and any(True for _ in _weights(call)):
            found.add(node.name)
        else:
            waiting += node.all_input_nodes
    return found


def activation_behind(gm: GraphModule, node: Node) -> Node:
    """The node after its norm and activation, if nothing else reads its channels before."""
    for _ in range(_MOST_HOPS):
        if len(node.users) != 1:
            break
        (user,) = node.users
        call = bind(gm, user) if user.op.startswith("call_") else None
        if call is None or call.spec.family not in ("norm", "activation") or not _keeps_channels(call.spec):
            break
        node = user
    return node


def _keeps_channels(spec: OpSpec) -> bool:
    return spec.channels == "norm_per_channel" or (spec.elementwise and len(spec.activations) == 1)


def require_finite_weights(gm: GraphModule) -> None:
    """Refuse NaN and infinite weights, even in layers that no criterion scores."""
    for name, parameter in gm.named_parameters():
        if not is_finite(parameter):
            raise SparsebitError(
                "the model holds weights that are not finite",
                where=name,
                got=f"{int((~parameter.isfinite()).sum())} of {parameter.numel()} are NaN or infinite",
                hint="load the model again, or train it in float32",
            )
