"""Is a shrunk model right? An answer that knows nothing of how it was shrunk.

The low bits of every parameter element hold its own number. They tell which elements a shrunk model still has;
with all others set to zero, the original model must compute the same.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node

from sparsebit.graph.ops import bind, op_name
from sparsebit.graph.run import run_graph
from tests.zoo.entry import outputs_of

BITS = 24


@torch.no_grad()
def hide_numbers(model: nn.Module) -> nn.Module:
    """Write each element's position into the low bits of its float64 mantissa."""
    for parameter in model.parameters():
        flat = parameter.data.view(torch.int64).view(-1)
        assert flat.numel() < 2**BITS
        flat.bitwise_and_(-(2**BITS)).bitwise_or_(torch.arange(flat.numel()))
    return model


def read_numbers(tensor: Tensor) -> Tensor:
    """The positions that the elements had in the original tensor."""
    return tensor.detach().contiguous().view(torch.int64).bitwise_and(2**BITS - 1)


@torch.no_grad()
def mask_original(gm: GraphModule, small: nn.Module) -> tuple[GraphModule, dict[str, Tensor]]:
    """A copy of the original with every element that the shrunk model lacks set to zero, and the masks."""
    masked = copy.deepcopy(gm)
    masks = {}
    for name, parameter in masked.named_parameters():
        left = read_numbers(small.get_parameter(name))
        mask = torch.zeros(parameter.numel(), dtype=torch.bool)
        mask[left.reshape(-1)] = True
        assert int(mask.sum()) == left.numel(), f"{name} holds an element twice"
        masks[name] = mask.reshape(parameter.shape)
        # The direction of a weight norm has no norm when it is zero.
        if not name.endswith("weight.original1"):
            parameter.mul_(masks[name])
    return masked, masks


def reference(
    gm: GraphModule, small: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Tensor]:
    """The outputs of the masked original, its norms taken over the channels that are left."""
    masked, masks = mask_original(gm, small)
    replace = {}
    for node in masked.graph.nodes:
        function = _norm_over_survivors(masked, node, masks)
        if function is not None:
            replace[node.name] = function
    with torch.no_grad():
        return outputs_of(run_graph(masked, inputs, kwargs, replace=replace))


def _norm_over_survivors(gm: GraphModule, node: Node, masks: dict[str, Tensor]) -> Any:
    name = op_name(gm, node)
    if name == "mean":
        return _mean_of_squares(gm, node, masks)
    if name not in ("layer_norm", "rms_norm", "group_norm"):
        return None
    call = bind(gm, node)
    assert call is not None
    if call.weight_name is None:
        return None
    mask = masks[call.weight_name]
    if bool(mask.all()):
        return None
    weight, bias = gm.get_parameter(call.weight_name), call.bias_name and gm.get_parameter(call.bias_name)
    eps = call.arguments["eps"]
    groups = call.arguments.get("num_groups", 1)

    def norm(x: Tensor, *rest: Any, **others: Any) -> Tensor:
        if name == "group_norm":
            left = mask.reshape(groups, -1)
            alive = left.any(1)
            index = torch.nonzero(mask).reshape(-1)
            y = torch.zeros_like(x)
            shift = bias[index] if bias is not None else None
            y[:, index] = F.group_norm(x[:, index], int(alive.sum()), weight[index], shift, eps)
            return y
        index = torch.nonzero(mask).reshape(-1)
        y = torch.zeros_like(x)
        if name == "rms_norm":
            y[..., index] = F.rms_norm(x[..., index], (len(index),), weight[index], eps)
        else:
            shift = bias[index] if bias is not None else None
            y[..., index] = F.layer_norm(x[..., index], (len(index),), weight[index], shift, eps)
        return y

    return norm


def _mean_of_squares(gm: GraphModule, node: Node, masks: dict[str, Tensor]) -> Any:
    """The mean inside an RMS norm written out: its module's weight says how many channels are left."""
    path = node.meta.get("module_path")
    mask = masks.get(f"{path}.weight" if path else "weight")
    source = node.args[0]
    if mask is None or mask.dim() != 1 or op_name(gm, source) not in ("pow", "square"):  # type: ignore[arg-type]
        return None
    factor = mask.numel() / int(mask.sum())
    return lambda x, *rest, **others: torch.mean(x, *rest, **others) * factor
