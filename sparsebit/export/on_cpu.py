"""Where a file is compared with its model: on the CPU, as the runtimes compute."""

from __future__ import annotations

import copy

from torch.fx import GraphModule


def on_cpu(graph: GraphModule) -> GraphModule:
    """The graph, or a copy of it where it is on a GPU: there sums are rounded more coarsely than a check can allow."""
    tensors = (*graph.parameters(), *graph.buffers())
    return graph if all(tensor.device.type == "cpu" for tensor in tensors) else copy.deepcopy(graph).cpu()
