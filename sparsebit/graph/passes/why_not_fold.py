"""When folding a batch norm into an adjacent layer is exact, and otherwise the reason why it is not."""

from __future__ import annotations

from bisect import bisect

from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from sparsebit.graph.effects import assign, read_flag
from sparsebit.graph.ops import OpCall, OpSpec, bind, find_op, op_name
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.passes.channel_affine import Affine, affine_of_statistics
from sparsebit.graph.value import TensorInfo
from sparsebit.numerics.finite import is_finite

_STATISTICS = ("running_mean", "running_var", "weight", "bias")


def why_not_fold(gm: GraphModule, first: Node, second: Node) -> str | None:
    """The reason why a layer and a batch norm, in either order, cannot be folded, or None."""
    return why_not_pair(Uses(gm), first, second)


def is_foldable(spec: OpSpec) -> bool:
    """Whether an operator is a layer that a batch norm can be folded into: a convolution or a linear layer."""
    return spec.channels in ("convolution", "linear")


def is_transposed(spec: OpSpec) -> bool:
    """Whether a convolution's weight has its output channels second."""
    return spec.weight_axes == (1, 0)


def affine_of(norm: OpCall) -> Affine:
    """Scale and shift of a batch norm whose tensors are all available."""
    mean, var, gamma, beta = (tensor_of(norm, name) for name in _STATISTICS)
    eps = norm.arguments["eps"]
    assert mean is not None and var is not None and isinstance(eps, (int, float))
    return affine_of_statistics(mean, var, gamma, beta, eps)


def tensor_of(call: OpCall, argument: str) -> Tensor | None:
    """The tensor of an argument: held by the module, or named by a parameter node."""
    value = call.arguments.get(argument)
    if value is None:
        return None
    return fetch_tensor(call.owner, str(value.target) if isinstance(value, Node) else str(value))


class Uses:
    """The callers of each module and readers of each tensor of a graph module, looked up once."""

    def __init__(self, gm: GraphModule) -> None:
        self.gm = gm
        self.calls: dict[int, list[Node]] = {}
        self.reads: dict[str, list[Node]] = {}  # by the dotted name of a tensor and of every module around it
        self.position: dict[Node, int] = {}
        self._switches: list[tuple[int, Node]] = []
        for position, node in enumerate(gm.graph.nodes):
            self.position[node] = position
            spec = find_op(gm, node)
            if spec is not None and spec.family == "mode":
                self._switches.append((position, node))
            if node.op == "call_module":
                self.calls.setdefault(id(gm.get_submodule(str(node.target))), []).append(node)
            elif node.op == "get_attr":
                name = str(node.target)
                while name:
                    self.reads.setdefault(name, []).append(node)
                    name = name.rpartition(".")[0]

    def switch_between(self, first: Node, second: Node) -> Node | None:
        """A node that switches autocast or gradients after one node and before another."""
        at = bisect(self._switches, self.position[first], key=lambda switch: switch[0])
        if at < len(self._switches) and self._switches[at][0] < self.position[second]:
            return self._switches[at][1]
        return None

    def others(self, node: Node) -> list[str]:
        """The nodes that share the module of a call, or the tensors of it."""
        module = self.gm.get_submodule(str(node.target))
        calls = [other for other in self.calls[id(module)] if other is not node]
        return [other.name for other in (*calls, *self.reads.get(str(node.target), ()))]


def why_not_pair(uses: Uses, first: Node, second: Node) -> str | None:
    """As ``why_not_fold``, for many pairs of one graph."""
    gm = uses.gm
    after = op_name(gm, second) == "batch_norm"
    layer_node, norm_node = (first, second) if after else (second, first)
    layer, norm = bind(gm, layer_node), bind(gm, norm_node)
    if layer is None or not is_foldable(layer.spec) or norm is None or norm.spec.name != "batch_norm":
        return f"{first.name} and {second.name} are not a layer and a batch norm"
    if first not in (norm if after else layer).activations[:1]:
        return f"{second.name} does not read {first.name}"
    if others := [user.name for user in first.users if user is not second]:
        return f"{first.name} also feeds {', '.join(others)}"
    if switch := uses.switch_between(first, second):
        return f"{switch.name} switches between {first.name} and {second.name}"
    return (
        _why_norm_varies(uses, norm)
        or _why_layer_is_fixed(uses, layer)
        or _why_axes_differ(layer, norm, after)
        or (None if after else _why_border_differs(layer, norm))
    )


def _why_norm_varies(uses: Uses, norm: OpCall) -> str | None:
    """Why a batch norm is not a constant scale and shift."""
    node, module = norm.node, norm.module
    name = str(getattr(node.target, "__name__", node.target))
    if module is None and name.partition(".")[0] != "batch_norm":
        return f"{node.name} returns more than the normalised tensor"
    if norm.arguments.get("running_mean") is None or norm.arguments.get("running_var") is None:
        return f"{node.name} uses the statistics of the batch (track_running_stats=False)"
    flag = norm.arguments.get("training", False)
    training = read_flag(uses.gm, flag) if module is None else module.training
    if training is None:
        return f"the mode of {node.name} is known only at run time"
    if training:
        return f"{node.name} is in training mode"
    if module is not None:
        if why := _why_module_is_special(norm):
            return why
        if readers := [reader.name for reader in uses.reads.get(str(node.target), ())]:
            return f"the tensors of {node.target} are also used by {', '.join(readers)}"
    else:
        for name in _STATISTICS:
            value = norm.arguments.get(name)
            if value is not None and (why := _why_tensor_varies(name, node, value)):
                return why
    variance = tensor_of(norm, "running_var")
    if variance is not None and not is_finite(variance):
        return f"the running variance of {node.name} holds NaN or infinity"  # which folding would hide: x / inf is 0
    return None


def _why_layer_is_fixed(uses: Uses, layer: OpCall) -> str | None:
    """Why the weights of a layer cannot be changed."""
    node, name = layer.node, layer.weight_name
    if layer.module is not None:
        if others := uses.others(node):
            return f"{node.target} is shared with {', '.join(others)}"
        return _why_module_is_special(layer)
    for argument in ("weight", "bias"):
        value = layer.arguments.get(argument)
        if argument == "bias" and value is None:
            continue
        if why := _why_tensor_varies(argument, node, value):
            return why
        assert isinstance(value, Node)
        if others := [user.name for user in value.users if user is not node]:
            return f"{value.target} is shared with {', '.join(others)}"
        owner = str(value.target).rpartition(".")[0]
        if owner and uses.calls.get(id(uses.gm.get_submodule(owner))):
            return f"{value.target} belongs to a module that the graph calls as well"
    assert name is not None
    return None if fetch_tensor(uses.gm, name).is_floating_point() else f"{name} is not floating point"


def _why_tensor_varies(argument: str, node: Node, value: object) -> str | None:
    if not isinstance(value, Node) or value.op != "get_attr":
        return f"the {argument} of {node.name} is computed in the graph"
    writers = [user.name for user in value.users if user.meta.get("mutates") or user.target is assign]
    return f"{value.target} is written by {', '.join(writers)}" if writers else None


def _why_module_is_special(call: OpCall) -> str | None:
    module, path = call.module, call.node.target
    assert module is not None
    if module._forward_hooks or module._forward_pre_hooks:
        return f"{path} has hooks, which would see other values"
    if parametrize.is_parametrized(module):
        return f"{path} is parametrized: its weight is computed again in every call"
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        return f"{path} has not created its parameters yet"
    weight = getattr(module, "weight", None)
    if weight is not None and "weight" not in module._parameters:
        return f"the weight of {path} is not a parameter"
    integers = weight is not None and not weight.is_floating_point()
    return f"the weight of {path} is not floating point" if integers else None


def _why_axes_differ(layer: OpCall, norm: OpCall, after: bool) -> str | None:
    """Why the channels of the batch norm (axis 1) are not those of the layer."""
    between = (layer if after else norm).node
    info = between.meta.get("value")
    shape = info.shape if isinstance(info, TensorInfo) else None
    features = tensor_of(norm, "running_mean")
    assert features is not None and layer.weight_name is not None
    outputs, inputs = _channels(layer)
    channels = outputs if after else inputs
    if features.numel() != channels:
        return f"{norm.node.name} has {features.numel()} channels, {layer.node.name} has {channels}"
    if layer.spec.name == "linear":
        if shape is None:
            return f"the rank of {between.name} is unknown, and only rank 2 is exact; give example inputs"
        if len(shape) != 2:
            return f"{layer.node.name} works on the last axis of {len(shape)}, {norm.node.name} on axis 1"
    elif shape is not None and len(shape) != layer.spec.spatial + 2:
        return f"{between.name} has no batch axis, so axis 1 is not its channels"
    return None


def _why_border_differs(layer: OpCall, norm: OpCall) -> str | None:
    """Why a shift before a layer is not a constant after it."""
    if layer.spec.name == "linear" or not affine_of(norm).shift.any():
        return None
    if is_transposed(layer.spec):
        return f"{layer.node.name} adds {norm.node.name}'s shift more often in some positions than in others"
    if layer.arguments.get("padding_mode", "zeros") != "zeros":
        return None  # the border repeats values that were shifted as well
    assert layer.weight_name is not None
    kernel = fetch_tensor(layer.owner, layer.weight_name).shape[2:]
    padding = layer.arguments.get("padding", 0)
    if isinstance(padding, str):
        padded = padding != "valid" and any(size > 1 for size in kernel)
    else:
        padded = any(padding) if isinstance(padding, (tuple, list)) else padding != 0
    why = f"{layer.node.name} pads with zeros, which {norm.node.name} would not have shifted"
    return why if padded else None


def _channels(layer: OpCall) -> tuple[int, int]:
    """(output, input) channels of a layer."""
    assert layer.weight_name is not None
    weight = fetch_tensor(layer.owner, layer.weight_name)
    if is_transposed(layer.spec):
        return weight.shape[1] * layer.groups, weight.shape[0]
    return weight.shape[0], weight.shape[1] * layer.groups
