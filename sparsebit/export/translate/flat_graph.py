"""A captured graph in the form that exporters need: tensors in, tensors out, no structure, no checks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_arg

from sparsebit.errors import ExportError
from sparsebit.graph.codegen import fail_silently, make_safe
from sparsebit.graph.effects import is_effect
from sparsebit.graph.functional import check_branch

SEPARATOR = "/"  # of flat module names: dots would make torch look for nested modules


class FlatGraph(nn.Module):
    """The nodes of a captured graph over positional tensors; shares every module and parameter with it.

    ``forward`` returns the list of the outputs that are tensors. ``input_names`` are those of the model's arguments.
    """

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__()
        self.body = _copy(gm)
        self.input_names = _argument_names(gm)
        self.training = gm.training

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The tensors among the outputs, in order."""
        return tuple(value for value in self.body(*inputs) if isinstance(value, Tensor))


def original_name(name: str) -> str:
    """The dotted name of a parameter or module in the user's model, from its name in a ``FlatGraph``."""
    return name.removeprefix("body.").replace(f"{SEPARATOR}.", ".").rstrip(SEPARATOR).replace(SEPARATOR, ".")


def _argument_names(gm: fx.GraphModule) -> list[str]:
    """The names of the arguments; placeholders of arguments named like a Python function have another (``input_1``)."""
    placeholders = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
    signature = getattr(gm, "call_signature", None)  # a graph that was not captured by sparsebit has none
    paths = [] if signature is None else [leaf.path for leaf in signature.input_leaves()]
    same_tensors = len({*paths}) == len(placeholders) and all(path.isidentifier() for path in paths)
    return paths if same_tensors else placeholders


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    root = nn.Module()
    graph = fx.Graph()
    twins: dict[fx.Node, fx.Node] = {}
    for node in _live(gm):
        if node.op == "output":
            leaves = [value for value in _leaves(node.args[0]) if isinstance(value, fx.Node)]
            if not leaves:
                raise ExportError("the model returns no tensor", hint="export a part of it that computes one")
            graph.output(tuple(twins[value] for value in leaves))
            continue
        twin = graph.node_copy(node, twins.__getitem__)
        if node.op in ("call_module", "get_attr"):
            twin.target = _adopt(root, gm, node)
        twins[node] = twin
    return fail_silently(fx.GraphModule(root, make_safe(graph), "FlatGraph"))


def _adopt(root: nn.Module, gm: fx.GraphModule, node: fx.Node) -> str:
    """Attach the object that a node refers to directly under ``root``, and return its name there."""
    target = str(node.target)
    owner, _, name = target.rpartition(".")
    flat = target.replace(".", SEPARATOR)
    if hasattr(fx.GraphModule, flat) or flat == "meta":  # for example a buffer called ``code``
        flat += SEPARATOR
    if node.op == "call_module":
        root._modules[flat] = gm.get_submodule(target)
        return flat
    value = getattr(gm.get_submodule(owner), name)
    if isinstance(value, nn.Parameter):
        root._parameters[flat] = value
    else:
        root._buffers[flat] = value
    return flat


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    map_arg(value, found.append)
    return found


def _live(gm: fx.GraphModule) -> list[fx.Node]:
    """The nodes of a graph without its checks and without the nodes that only checks read."""
    live: dict[fx.Node, None] = {}
    for node in reversed(gm.graph.nodes):
        if _is_check(node):
            continue
        read = any(user in live for user in node.users)
        if read or node.op in ("placeholder", "output") or is_effect(gm, node):
            live[node] = None
    return list(live)[::-1]


def _is_check(node: fx.Node) -> bool:
    name = getattr(node.target, "__name__", "")
    return node.op == "call_function" and (node.target is check_branch or name.startswith("_assert"))


def example_leaves(flat: FlatGraph, values: Sequence[Any], device: torch.device | None) -> list[Tensor]:
    """The tensors of an example call, copied to the model's device."""
    wrong = [
        name for name, value in zip(flat.input_names, values, strict=True) if not isinstance(value, Tensor)
    ]
    if wrong:
        raise ExportError(
            "only tensors can be inputs of an ONNX model",
            got=", ".join(wrong),
            hint="capture the model with these values fixed",
        )
    return [value.detach().to(device=device or value.device, copy=True) for value in values]
