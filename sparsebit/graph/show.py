"""A graph as a readable table, and as a Mermaid flowchart."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Literal

import torch
from torch import nn
from torch.fx import GraphModule, Node

from sparsebit.display import as_text
from sparsebit.errors import GraphError
from sparsebit.graph.effects import is_effect
from sparsebit.graph.ops import op_name
from sparsebit.graph.value import TensorInfo, tensors_in

if TYPE_CHECKING:
    from rich.table import Table

Column = Literal["name", "op", "target", "inputs", "shape", "dtype", "params", "where"]
COLUMNS: tuple[Column, ...] = ("name", "op", "target", "inputs", "shape", "dtype", "params", "where")


def table(gm: GraphModule, columns: Sequence[Column] = COLUMNS) -> str:
    """The graph as a table in plain text, one row per node, as wide as necessary.

    Example:
        >>> gm = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
        >>> print(table(gm, ["name", "op", "inputs", "params"]))
          name      op            inputs    params
         ──────────────────────────────────────────
          input_1   placeholder
          _0        linear        input_1        9
          _1        relu          _0
          output    output        _1
    """
    return as_text(to_rich_table(gm, columns))


def to_rich_table(gm: GraphModule, columns: Sequence[Column] = COLUMNS) -> Table:
    """The same as a ``rich`` table, to print in colour or to put into a layout."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    if unknown := [column for column in columns if column not in _CELLS]:
        raise GraphError(f"no column {unknown[0]!r}", expected=", ".join(COLUMNS))
    shown = Table(box=box.SIMPLE, pad_edge=True)
    for column in columns:
        shown.add_column(column, justify="right" if column == "params" else "left", overflow="fold")
    for node in gm.graph.nodes:
        # Text, because names such as "x[0]" would be read as markup
        shown.add_row(*(Text(_CELLS[column](gm, node)) for column in columns))
    return shown


def mermaid(gm: GraphModule) -> str:
    """The graph as a Mermaid flowchart, with the shape of each value on its edges if known.

    Identifiers are numbers (``n0``), because a node may be called ``end``; labels are quoted, and every
    character but plain letters, digits and a few signs is written as an entity. The parser of mermaid 11.17
    accepts it, for ordinary graphs and for names made of every printable character. Viewers draw at most 500
    edges unless told otherwise.

    Example:
        >>> print(mermaid(torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))))
        flowchart TB
            n0(["input_1"]):::input
            n1["_0<br/>relu"]
            n2(["output"]):::output
            n0 --> n1
            n1 --> n2
            classDef input fill:#dbeafe,stroke:#2563eb,color:#1e293b
            classDef output fill:#dcfce7,stroke:#16a34a,color:#1e293b
            classDef state fill:#f1f5f9,stroke:#94a3b8,color:#1e293b
            classDef effect fill:#fee2e2,stroke:#dc2626,color:#1e293b
    """
    nodes = list(gm.graph.nodes)
    ids = {node: f"n{index}" for index, node in enumerate(nodes)}
    drawn = [f"    {_draw(gm, node, ids[node])}" for node in nodes]
    labels = {node: _shape_text(node.meta.get("value")) for node in nodes}
    shown = {node: f'|"{_escape(label)}"|' if label else "" for node, label in labels.items()}
    edges = [
        f"    {ids[source]} -->{shown[source]} {ids[node]}"
        for node in nodes
        for source in node.all_input_nodes
    ]
    styles = [f"    classDef {name} {style},color:#1e293b" for name, style in _STYLES.items()]
    return "\n".join(["flowchart TB", *drawn, *edges, *styles])


_STYLES = {
    "input": "fill:#dbeafe,stroke:#2563eb",
    "output": "fill:#dcfce7,stroke:#16a34a",
    "state": "fill:#f1f5f9,stroke:#94a3b8",
    "effect": "fill:#fee2e2,stroke:#dc2626",
}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,+=/×")


def _draw(gm: GraphModule, node: Node, identifier: str) -> str:
    name = _escape(node.name)
    if node.op == "placeholder":
        return f'{identifier}(["{name}"]):::input'
    if node.op == "output":
        return f'{identifier}(["{name}"]):::output'
    if node.op == "get_attr":
        return f'{identifier}[("{_escape(str(node.target))}")]:::state'
    label = f"{name}<br/>{_escape(op_name(gm, node) or _target(gm, node))}"
    return f'{identifier}{{{{"{label}"}}}}:::effect' if is_effect(gm, node) else f'{identifier}["{label}"]'


def _escape(text: str) -> str:
    """Text for a quoted Mermaid label: special characters become numeric entities.

    Spaces and colons too: even in quotes Mermaid reads ``direction TB`` as a command, ``style a:#...;`` as a
    style.
    """
    shown = (char if char.isprintable() else " " for char in text or "?")
    return "".join(char if char in _PLAIN else f"#{ord(char)};" for char in shown)


def _target(gm: GraphModule, node: Node) -> str:
    """What a node calls or reads, in readable form."""
    target = node.target
    if isinstance(target, str):
        return "" if node.op in ("placeholder", "output") else target
    if isinstance(target, torch._ops.OpOverload):
        return f"{target.namespace}.{target._opname}.{target._overloadname}"
    own = getattr(target, "__objclass__", None) is not None
    if own or getattr(torch.Tensor, _name(target), None) is target:
        return f"Tensor.{_name(target)}"
    # an autograd function, as its bound apply or wrapped by the recorder
    owner = getattr(target, "__self__", None) or getattr(target, "function", None)
    if isinstance(owner, type):
        return f"{owner.__qualname__}.apply"
    if getattr(torch, _name(target), None) is target:
        return f"torch.{_name(target)}"
    home = str(getattr(target, "__module__", "") or "")
    home = {"_operator": "operator", "builtins": ""}.get(home, home)
    return f"{home}.{_name(target)}".lstrip(".")


def _name(target: object) -> str:
    return str(getattr(target, "__name__", type(target).__name__))


def _parameters(gm: GraphModule, node: Node) -> str:
    if node.op == "call_module":
        count = sum(parameter.numel() for parameter in gm.get_submodule(str(node.target)).parameters())
    elif node.op == "get_attr":
        value = attrgetter(str(node.target))(gm)
        count = value.numel() if isinstance(value, nn.Parameter) else 0
    else:
        count = 0
    return f"{count:,}" if count else ""


def _shape_text(value: object) -> str:
    """``2×3×8`` for a tensor, a comma between several, the number of a size."""
    if isinstance(value, TensorInfo):
        return "×".join(map(str, value.shape)) or "scalar"
    if isinstance(value, (tuple, list, dict)):
        shown = [_shape_text(info) for info in tensors_in(value)]
        return ", ".join(shown[:4]) + (f", … {len(shown)} in all" if len(shown) > 4 else "")
    return str(value) if isinstance(value, (int, float)) else ""


def _dtype_text(gm: GraphModule, node: Node) -> str:
    value = node.meta.get("value")
    names = [str(info.dtype).removeprefix("torch.") for info in tensors_in(value)]
    if not names and isinstance(value, (bool, int, float)):
        return type(value).__name__
    return ", ".join(dict.fromkeys(names))


def _where(gm: GraphModule, node: Node) -> str:
    source = node.meta.get("source")
    if not isinstance(source, tuple) or len(source) < 2:
        return ""
    return f"{os.path.basename(str(source[0]))}:{source[1]}"


_CELLS: dict[str, Callable[[GraphModule, Node], str]] = {
    "name": lambda gm, node: node.name,
    "op": lambda gm, node: op_name(gm, node) or node.op,
    "target": _target,
    "inputs": lambda gm, node: ", ".join(source.name for source in node.all_input_nodes),
    "shape": lambda gm, node: _shape_text(node.meta.get("value")),
    "dtype": _dtype_text,
    "params": _parameters,
    "where": _where,
}
