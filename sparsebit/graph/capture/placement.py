"""Last steps that every front-end takes on its graph."""

from __future__ import annotations

from torch import fx, nn

from sparsebit.graph.capture.modes import is_removable
from sparsebit.graph.capture.module import ModeConstant


def place_mode_constants(shell: nn.Module, graph: fx.Graph) -> None:
    """Give every mode-dependent constant of the graph a module under the one that owns it."""
    for node in graph.nodes:
        constant = node.meta.pop("mode_constant", None)
        if isinstance(constant, ModeConstant):
            path = node.meta.get("module_path", "")
            owner = shell.get_submodule(path)
            name = str(node.target)
            constant.training = owner.training
            owner.add_module(name.rpartition(".")[2], constant)


def drop_dead_functions(graph: fx.Graph, keep_random: bool = False) -> None:
    """Remove function results that nobody asked for, such as unused parts of a tuple.

    In training an unused random number still moves the generator on, and the dropouts behind it draw others.
    """
    for node in reversed(list(graph.nodes)):
        if not node.users and is_removable(node) and not (keep_random and node.meta.get("random")):
            graph.erase_node(node)
