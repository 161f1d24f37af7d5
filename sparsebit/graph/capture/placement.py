"""Last steps that every front-end takes on its graph."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx, nn

from sparsebit.graph.capture.call.signature import CallSignature, CapturedCodeGen
from sparsebit.graph.capture.modes import is_removable
from sparsebit.graph.capture.module import CapturedModule
from sparsebit.graph.capture.report import CaptureReport
from sparsebit.graph.functional import ModeConstant


def assemble(
    shell: nn.Module,
    graph: fx.Graph,
    signature: CallSignature,
    name: str,
    report: CaptureReport,
    *,
    constants: dict[str, Any] | None = None,
    conflict: str | None = None,
    modes: dict[bool, dict[str, bool]] | None = None,
    keep_random: bool = False,
) -> CapturedModule:
    """The graph module of a finished graph.

    Args:
        shell: holds the model's parameters, buffers and leaf modules.
        constants: tensors and modules that were found during capturing, by the names under which the graph reads them.
        conflict: why the graph cannot switch between training and evaluation, if it cannot.
        modes: as ``overridden_modes`` gives them.
        keep_random: unused random numbers stay, because drawing them advances the generator.
    """
    drop_dead_functions(graph, keep_random)
    report.sizes = [size for leaf in signature.input_leaves() for size in leaf.sizes]
    graph.set_codegen(CapturedCodeGen(signature))
    for key, value in (constants or {}).items():
        if isinstance(value, Tensor):
            shell.register_buffer(key, value.detach(), persistent=False)
        else:
            shell.add_module(key, value)
    place_mode_constants(shell, graph)
    module = CapturedModule(shell, graph, name)
    module.set_capture(report, conflict, modes or {})
    return module


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
    """Remove function results that are not used, such as parts of a tuple.

    In training an unused random number still advances the generator, so the dropouts after it draw other numbers.
    """
    for node in reversed(list(graph.nodes)):
        if not node.users and is_removable(node) and not (keep_random and node.meta.get("random")):
            graph.erase_node(node)
