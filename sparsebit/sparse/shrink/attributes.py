"""Attributes of ``torch.nn`` layers that know a size."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from sparsebit.errors import GraphError
from sparsebit.graph.ops.spec import OpCall
from sparsebit.sparse.channels.labels import Labels
from sparsebit.sparse.channels.trace import Trace
from sparsebit.sparse.shrink.alive import Alive

Index = Mapping[str, Mapping[int, Tensor]]


def module_attributes(call: OpCall, trace: Trace, alive: Alive, index: Index) -> dict[str, Any]:
    """What to set on the module that a node calls: only what changes."""
    module = call.module
    wanted: dict[str, Any] = {}
    if isinstance(module, nn.modules.conv._ConvNd):
        wanted = _conv(call, module, trace, alive, index)
    elif isinstance(module, nn.Linear):
        out, read = _size(call, "weight", trace, index)
        wanted = {"out_features": out, "in_features": read}
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        wanted = {"num_features": alive.shape(_result(call, trace))[_norm_channel(call, trace)]}
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
        shape = alive.shape(_result(call, trace))
        wanted = {"normalized_shape": shape[len(shape) - len(module.normalized_shape) :]}
    elif isinstance(module, nn.GroupNorm):
        from sparsebit.sparse.shrink.constants import count_groups

        channels = alive.shape(_result(call, trace))[1]
        wanted = {"num_channels": channels, "num_groups": count_groups(call, trace, alive)}
    elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
        wanted = {"embedding_dim": _size(call, "weight", trace, index)[1]}
    elif isinstance(module, nn.RNNBase):
        wanted = _recurrent(call, module, trace, index)
    elif isinstance(module, nn.RNNCellBase):
        wanted = {
            "hidden_size": _size(call, "weight_hh", trace, index)[1],
            "input_size": _size(call, "weight_ih", trace, index)[1],
        }
    elif isinstance(module, nn.PReLU):
        wanted = {"num_parameters": _size(call, "weight", trace, index)[0]}
    elif isinstance(module, nn.Unflatten):
        wanted = _unflatten(call, module, trace, alive)
    return {name: value for name, value in wanted.items() if getattr(module, name) != value}


def _result(call: OpCall, trace: Trace) -> Labels:
    return trace.labels_of(call.node)


def _size(call: OpCall, attribute: str, trace: Trace, index: Index) -> tuple[int, ...]:
    """The shape that is left of one of the module's own tensors."""
    name = f"{call.node.target}.{attribute}"
    shape = list(trace.shape(name))
    for axis, where in index.get(trace.canonical(name), {}).items():
        shape[axis] = len(where)
    return tuple(shape)


def _conv(
    call: OpCall, module: nn.modules.conv._ConvNd, trace: Trace, alive: Alive, index: Index
) -> dict[str, Any]:
    from sparsebit.sparse.shrink.constants import count_groups

    channel = len(_result(call, trace).shape) - 1 - call.spec.spatial
    return {
        "in_channels": alive.shape(trace.labels_of(call.arguments["input"]))[channel],
        "out_channels": alive.shape(_result(call, trace))[channel],
        "groups": count_groups(call, trace, alive),
    }


def _recurrent(call: OpCall, module: nn.RNNBase, trace: Trace, index: Index) -> dict[str, Any]:
    gates = trace.shape(f"{call.node.target}.weight_hh_l0")[0] // module.hidden_size
    wanted = {
        "hidden_size": _size(call, "weight_hh_l0", trace, index)[0] // gates,
        "input_size": _size(call, "weight_ih_l0", trace, index)[1],
    }
    if module.proj_size:
        wanted["proj_size"] = _size(call, "weight_hr_l0", trace, index)[0]
        if wanted["proj_size"] >= wanted["hidden_size"]:
            raise GraphError(
                "a projection must stay narrower than the hidden units it projects",
                where=str(call.node.target),
                expected=f"more than {wanted['proj_size']} hidden units",
                got=str(wanted["hidden_size"]),
                hint="keep more of the hidden units, or fewer of the projected ones",
            )
    return wanted


def _unflatten(call: OpCall, module: nn.Unflatten, trace: Trace, alive: Alive) -> dict[str, Any]:
    source = trace.labels_of(call.arguments["input"])
    at = int(module.dim) % len(source.shape)
    shape, old = alive.shape(_result(call, trace)), module.unflattened_size
    if not isinstance(old, (tuple, list)) or not all(isinstance(size, int) for size in old):
        return {}
    new = shape[at : at + len(old)]
    return {
        "unflattened_size": tuple(-1 if size == -1 else left for size, left in zip(old, new, strict=True))
    }


def _norm_channel(call: OpCall, trace: Trace) -> int:
    rank, name = len(_result(call, trace).shape), type(call.module).__name__
    unbatched = name.startswith("InstanceNorm") and name[-2:-1].isdigit() and rank == int(name[-2]) + 1
    return 0 if unbatched else 1
