"""Use a model without changing it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

from sparsebit.graph.effects import is_effect
from sparsebit.graph.exclusive import replaced
from sparsebit.graph.ops import bind
from sparsebit.graph.run import SavedState
from sparsebit.quantization.quantizers import Quantizer


@contextlib.contextmanager
def undisturbed(model: GraphModule, *, quantized: bool = True) -> Iterator[None]:
    """Inside the block the model is in evaluation mode, observers are off, and quantizers are on if ``quantized``.

    Afterwards modes, switches, state and random state are restored.
    """
    quantizers = [module for module in model.modules() if isinstance(module, Quantizer)]
    devices = sorted({p.device.index or 0 for p in (*model.parameters(), *model.buffers()) if p.is_cuda})
    with (
        replaced(*((module, "training", False) for module in model.modules())),
        replaced(*((quantizer, "use_quant", quantized) for quantizer in quantizers)),
        replaced(*((quantizer, "observing", False) for quantizer in quantizers)),
        torch.random.fork_rng(devices=devices),
        SavedState(model, parameters=writes_in_place(model)).undone(),
    ):
        yield


def writes_in_place(gm: GraphModule) -> bool:
    """Whether a node changes a tensor or a buffer: a trace would not follow that through views."""
    return any(node.op not in ("placeholder", "output") and _writes(gm, node) for node in gm.graph.nodes)


def _writes(gm: GraphModule, node: Node) -> bool:
    if is_effect(gm, node):
        return True
    call = bind(gm, node)  # an embedding may rescale its table
    return call is not None and call.arguments.get("max_norm") is not None


def on_cpu(graph: GraphModule) -> GraphModule:
    """The graph, or a CPU copy if it is on a GPU, where sums are rounded more coarsely than the check allows."""
    tensors = (*graph.parameters(), *graph.buffers())
    return graph if all(tensor.device.type == "cpu" for tensor in tensors) else copy.deepcopy(graph).cpu()
