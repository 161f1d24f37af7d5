"""Attributes of ``torch.nn`` layers that contain a size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sparsebit.errors import GraphError
from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.rules.base import number
from sparsebit.sparse.channels.rules.norm import norm_channel
from sparsebit.sparse.channels.trace import Trace
from sparsebit.sparse.shrink.alive import Alive

Index = Mapping[str, Mapping[int, Tensor]]


def module_attributes(call: OpCall, trace: Trace, alive: Alive, index: Index) -> dict[str, Any]:
    """The attributes to set on the module that a node calls, if they change."""
    module, wanted = call.module, dict[str, Any]()
    result = trace.values[call.node.name]
    shape = alive.shape(result) if isinstance(result, Labels) else ()

    def left(tensor: str, axis: int) -> int:
        """The remaining size of one axis of the module's tensor."""
        name = f"{call.node.target}.{tensor}"
        kept = index.get(trace.canonical(name), {}).get(axis)
        return trace.shape(name)[axis] if kept is None else len(kept)

    match module:
        case nn.modules.conv._ConvNd():
            channel = len(shape) - 1 - call.spec.spatial
            reads = alive.shape(trace.labels_of(call.arguments["input"]))[channel]
            groups = count_groups(call, trace, alive)
            wanted = {"in_channels": reads, "out_channels": shape[channel], "groups": groups}
        case nn.Linear():
            wanted = {"out_features": left("weight", 0), "in_features": left("weight", 1)}
        case nn.modules.batchnorm._NormBase():
            wanted = {"num_features": shape[norm_channel(call, len(shape))]}
        case nn.LayerNorm() | nn.RMSNorm():
            wanted = {"normalized_shape": shape[len(shape) - len(module.normalized_shape) :]}
        case nn.GroupNorm():
            wanted = {"num_channels": shape[1], "num_groups": count_groups(call, trace, alive)}
        case nn.Embedding() | nn.EmbeddingBag():
            wanted = {"embedding_dim": left("weight", 1)}
        case nn.RNNBase():
            gates = trace.shape(f"{call.node.target}.weight_hh_l0")[0] // module.hidden_size
            wanted = {"hidden_size": left("weight_hh_l0", 0) // gates, "input_size": left("weight_ih_l0", 1)}
            if module.proj_size:
                wanted["proj_size"] = left("weight_hr_l0", 0)
                _require_projection(call, wanted["proj_size"], wanted["hidden_size"])
        case nn.RNNCellBase():
            wanted = {"hidden_size": left("weight_hh", 1), "input_size": left("weight_ih", 1)}
        case nn.PReLU():
            wanted = {"num_parameters": left("weight", 0)}
        case nn.Unflatten(unflattened_size=tuple() | list() as old) if all(isinstance(n, int) for n in old):
            at = int(module.dim) % len(trace.labels_of(call.arguments["input"]).shape)
            new = zip(old, shape[at : at + len(old)], strict=True)
            wanted = {"unflattened_size": tuple(-1 if size == -1 else kept for size, kept in new)}
    return {name: value for name, value in wanted.items() if getattr(module, name) != value}


def count_groups(call: OpCall, trace: Trace, alive: Alive) -> int:
    """The remaining number of groups of a grouped convolution or norm."""
    groups: int = number(call.arguments["num_groups" if "num_groups" in call.arguments else "groups"])
    value = trace.labels_of(call.arguments["input"])
    channel = len(value.shape) - 1 - call.spec.spatial if call.spec.spatial else 1
    flags = alive.along(value, channel)
    return groups if flags is None or groups == 1 else int(flags.reshape(groups, -1).any(1).sum())


def _require_projection(call: OpCall, shown: int, hidden: int) -> None:
    if shown >= hidden:
        raise GraphError(
            "a projection must stay narrower than the hidden units it projects",
            where=str(call.node.target),
            expected=f"more than {shown} hidden units",
            got=str(hidden),
            hint="keep more of the hidden units, or fewer of the projected ones",
        )
