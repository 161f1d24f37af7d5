"""Fold batch norm into the convolution or linear layer beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.graph.match import Match, NodeIndex, Op, Pattern, Refusal, scan
from sparsebit.graph.ops import OPS, OpCall, bind
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.passes.channel_affine import Affine, scale_inputs, scale_outputs
from sparsebit.graph.passes.edit import (
    remove_module,
    remove_tensor,
    replace_node,
    set_module,
    set_tensor,
    shallow_copy,
)
from sparsebit.graph.passes.why_not_fold import (
    Uses,
    affine_of,
    is_foldable,
    is_transposed,
    tensor_of,
    why_not_fold,
    why_not_pair,
)
from sparsebit.graph.replaced_parameters import announce_replacement
from sparsebit.graph.value import TensorInfo

__all__ = ["fold_batch_norm", "refusals", "why_not_fold"]


def fold_batch_norm(gm: GraphModule, keep: Collection[str] = ()) -> int:
    """Fold every batch norm that can be folded exactly, into the layer before it or else into the one after it.

    Those whose nodes are in ``keep`` are not changed. The folded layer is a new one under the old name; the batch norm
    leaves the graph module. The user's own modules and parameters do not change. Numbers are computed in float64 and
    cast back to the layer's dtype.

    Example:
        >>> import torch
        >>> gm = torch.fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval())
        >>> fold_batch_norm(gm), list(gm.state_dict())
        (1, ['0.weight', '0.bias'])
    """
    changes = 0
    # repeated for conv → bn → bn; if folding into the layer before fails, the layer after is tried
    while folded := _fold_all(gm, keep, after=True) or _fold_all(gm, keep, after=False):
        changes += folded
    if changes:
        gm.recompile()
    return changes


def refusals(gm: GraphModule) -> list[Refusal]:
    """Every pair that ``fold_batch_norm`` would not fold, with the reason."""
    index, uses = NodeIndex(gm), Uses(gm)
    folded, after = scan(gm, _pattern(uses, after=True), index)
    gone = {match["bn"] for match in folded}
    _, before = scan(gm, _pattern(uses, after=False), index)
    return after + [refusal for refusal in before if not gone & {refusal.node, *refusal.node.all_input_nodes}]


def _layers() -> tuple[str, ...]:
    return tuple(name for name, spec in OPS.items() if is_foldable(spec))


def _pattern(uses: Uses, keep: Collection[str] = (), *, after: bool) -> Pattern:
    def check(gm: GraphModule, match: Match) -> str | None:
        if match["bn"].name in keep:
            return f"{match['bn'].name} is kept on request"
        pair = (match["layer"], match["bn"]) if after else (match["bn"], match["layer"])
        return why_not_pair(uses, *pair)

    if after:
        ops = [Op("layer", _layers(), shared=True), Op("bn", "batch_norm", inputs=("layer",))]
    else:
        ops = [Op("bn", "batch_norm", shared=True), Op("layer", _layers(), inputs=("bn", ...))]
    return Pattern("fold_batch_norm", ops=ops, check=check)


def _fold_all(gm: GraphModule, keep: Collection[str], *, after: bool) -> int:
    matches, _ = scan(gm, _pattern(Uses(gm), keep, after=after))
    emptied: set[str] = set()
    for match in matches:
        layer, norm = bind(gm, match["layer"]), bind(gm, match["bn"])
        assert layer is not None and norm is not None
        _refit(layer, affine_of(norm), scale_outputs if after else scale_inputs)
        if after and "value" in norm.node.meta:
            layer.node.meta["value"] = norm.node.meta["value"]
        emptied |= {str(norm.node.target)} if norm.module is not None else set()
        _take_out(norm, layer.node if after else norm.activations[0])
    still_called = {str(node.target) for node in gm.graph.nodes if node.op == "call_module"}
    for path in sorted(emptied - still_called):
        remove_module(gm, path)
    return len(matches)


def _refit(layer: OpCall, norm: Affine, rule: Callable[..., tuple[Tensor, Tensor | None]]) -> None:
    """Give a layer the weight and bias that include the batch norm."""
    gm, node, weight_name = layer.owner, layer.node, layer.weight_name
    assert weight_name is not None
    old_weight, old_bias = fetch_tensor(gm, weight_name), tensor_of(layer, "bias")
    transposed = is_transposed(layer.spec)
    weight, bias = rule(old_weight, old_bias, norm, groups=layer.groups, transposed=transposed)
    like = old_weight if old_bias is None else old_bias
    weight, bias = weight.to(old_weight.dtype), None if bias is None else bias.to(like.dtype)
    if layer.module is not None:
        module = shallow_copy(layer.module)
        parameter = nn.Parameter(weight, requires_grad=old_weight.requires_grad)
        module.weight = announce_replacement(old_weight, parameter)
        if bias is not None:
            module.bias = nn.Parameter(bias, requires_grad=like.requires_grad)
        set_module(gm, str(node.target), module)
        return
    set_tensor(gm, weight_name, weight, like=old_weight)
    if bias is not None and layer.bias_name is not None:
        set_tensor(gm, layer.bias_name, bias, like=like)
    elif bias is not None:
        _add_bias(layer, weight_name, bias, old_weight)


def _add_bias(layer: OpCall, weight_name: str, value: Tensor, like: Tensor) -> None:
    """Give a functional layer a bias if it was called without one."""
    gm, node, weight = layer.owner, layer.node, layer.arguments["weight"]
    assert isinstance(weight, Node)
    owner, _, name = weight_name.rpartition(".")
    name = name.replace("weight", "bias") if "weight" in name else f"{name}_bias"
    while hasattr(gm.get_submodule(owner), name):
        name += "_folded"
    path = f"{owner}.{name}" if owner else name
    set_tensor(gm, path, value, like=like)
    with gm.graph.inserting_after(weight):
        bias = gm.graph.get_attr(path)
    bias.meta = {**weight.meta, "value": TensorInfo(tuple(value.shape), value.dtype)}
    if len(node.args) > 2:  # every functional layer takes (input, weight, bias, ...)
        node.update_arg(2, bias)
    else:
        node.update_kwarg("bias", bias)


def _take_out(norm: OpCall, stand_in: Node) -> None:
    """Remove a batch norm from the graph; with a functional one, the tensors that nothing else reads."""
    gm, sources = norm.owner, [source for source in norm.node.all_input_nodes if source.op == "get_attr"]
    replace_node(norm.node, stand_in)
    for source in sources:
        if not source.users:
            gm.graph.erase_node(source)
            remove_tensor(gm, str(source.target))
