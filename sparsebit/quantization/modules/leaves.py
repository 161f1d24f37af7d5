"""Leaves and memory that belong to the graph, so that changes to them do not affect the user's."""

from __future__ import annotations

from torch import Tensor, nn
from torch.fx import GraphModule

from sparsebit.graph.effects import written_tensors
from sparsebit.graph.passes.edit import shallow_copy
from sparsebit.graph.replaced_parameters import announce_replacement


def own_leaves(gm: GraphModule) -> int:
    """Replace the modules that a captured graph shares with the user's model by copies; returns how many.

    Parameters share their memory with the model's, as do buffers that calls do not change. Nothing else is shared: a
    model in training must not find its dropout switched off because its quantized twin was calibrated, nor half of
    itself on another device because the twin was moved there. What is shared inside the model stays shared.
    """
    copies: dict[int, nn.Module] = {}
    for name, child in gm._modules.items():
        gm._modules[name] = None if child is None else _copy(child, copies)
    twins: dict[int, nn.Parameter] = {}
    for module in gm.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in twins:
                    twin = nn.Parameter(parameter.detach(), parameter.requires_grad)
                    twins[id(parameter)] = announce_replacement(parameter, twin)
                setattr(module, name, twins[id(parameter)])  # recurrent layers keep a second list of them
    for name in written_tensors(gm):  # a call must not change the user's model
        path, _, key = name.rpartition(".")
        buffers = gm.get_submodule(path)._buffers
        if (buffer := buffers.get(key)) is not None:
            buffers[key] = buffer.clone()
    return len(copies)


def own_memory(gm: GraphModule) -> None:
    """Give parameters and buffers their own memory, before training writes to it."""
    for parameter in gm.parameters():
        parameter.data = parameter.data.clone()
    twins: dict[int, Tensor] = {}
    for module in gm.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = twins.setdefault(id(buffer), buffer.clone())
        if isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # on CUDA their memory is to be one piece


def _copy(module: nn.Module, copies: dict[int, nn.Module]) -> nn.Module:
    if id(module) not in copies:
        own = copies[id(module)] = shallow_copy(module)
        for name, child in module._modules.items():
            own._modules[name] = None if child is None else _copy(child, copies)
    return copies[id(module)]
