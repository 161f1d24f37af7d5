"""Source text for a graph in which no name of the model is executed.

``torch.fx`` writes a module's dotted name into the code it generates, and runs that code. The names of a ``ModuleDict``
are data (class labels, file names), so here each is written as a string literal that holds exactly the name.
"""

from __future__ import annotations

import contextlib
import keyword
import re
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from torch import fx, nn
from torch.fx.graph import CodeGen, PythonCode

from sparsebit.errors import GraphError

G = TypeVar("G", bound=fx.GraphModule)
_ODD = re.compile(r"[^A-Za-z0-9_ \-]")


def is_plain_name(name: str) -> bool:
    """Whether ``torch.fx`` writes this part of a dotted name into code so that it means the same there."""
    return not _ODD.search(name) and not keyword.iskeyword(name)


def is_plain_path(path: str) -> bool:
    """Whether every part of a dotted name is plain."""
    return all(map(is_plain_name, path.split(".")))


def find_unsafe_name(model: nn.Module) -> str | None:
    """The first dotted name of a module, parameter or buffer that generated code cannot hold as it is, or None."""
    named = (model.named_modules, model.named_parameters, model.named_buffers)
    names = (name for iterate in named for name, _ in iterate(remove_duplicate=False))
    return next((name for name in names if not is_plain_path(name)), None)


def _escape(name: str) -> str:
    """The inside of a string literal with this value; never an identifier, so that ``torch.fx`` quotes it."""
    odd = re.compile(".") if keyword.iskeyword(name) else _ODD
    return odd.sub(lambda found: f"\\U{ord(found[0]):08x}", name)


class SafeCodeGen(CodeGen):
    """A code generator for names that come from data: what a name says is never part of the code."""

    def _gen_python_code(self, nodes: Any, *args: Any, **kwargs: Any) -> PythonCode:
        with _escaped_targets(nodes):
            return super()._gen_python_code(nodes, *args, **kwargs)


def make_safe(graph: fx.Graph) -> fx.Graph:
    """Let a graph write its code safely, whatever its names; returns the graph."""
    codegen = graph._codegen
    if type(codegen) is CodeGen:
        graph.set_codegen(SafeCodeGen())
    elif not isinstance(codegen, SafeCodeGen):
        for node in graph.nodes:
            if node.op in ("call_module", "get_attr") and not is_plain_path(str(node.target)):
                raise GraphError(
                    f"the name {str(node.target)!r} cannot be written into code by {type(codegen).__name__}",
                    hint="rename the module, or leave the graph's own code generator in place",
                )
    return graph


def fail_silently(gm: G) -> G:
    """The same graph module, whose failures are only raised: that of ``torch.fx`` also prints them to stderr."""
    if "__call__" in vars(type(gm)):  # a class of its own for each graph module
        del type(gm).__call__
    return gm


@contextlib.contextmanager
def _escaped_targets(nodes: Iterable[fx.Node]) -> Iterator[None]:
    """Spell the targets of a graph for its source text, and put the true names back."""
    true_names: list[tuple[fx.Node, str]] = []
    try:
        for node in nodes:
            if wrong := next(
                (key for key in node.kwargs if not key.isidentifier() or keyword.iskeyword(key)), None
            ):
                raise GraphError(
                    f"node {node.name!r} is called with an argument named {wrong!r}, which is not a Python name",
                    hint="pass it inside a dict",
                )
            if node.op in ("call_module", "get_attr") and not is_plain_path(str(node.target)):
                true_names.append((node, str(node.target)))
                node.target = ".".join(map(_escape, str(node.target).split(".")))
        yield
    finally:
        for node, name in true_names:
            node.target = name
