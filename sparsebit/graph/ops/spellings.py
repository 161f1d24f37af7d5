"""Helpers for the rows of the operator tables: one name stands for all its spellings in torch."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F

from sparsebit.graph.ops.spec import OpSpec

_NAMESPACES: tuple[object, ...] = (torch, F, torch._C._nn, torch.special, torch.Tensor)


def family(kind: str, **shared: Any) -> Callable[..., OpSpec]:
    """A function that creates rows of one table: ``row(name, signature, *targets, **fields)``.

    A row covers what ``named`` finds for its own name and for ``targets``; with ``only=`` it covers just what is listed
    there. ``shared`` are fields of ``OpSpec`` that every row of the table has; a row may give another value.

    Example:
        >>> row = family("activation", elementwise=True)
        >>> row("elu", "input, alpha=1.0, inplace=False", torch.nn.ELU).elementwise
        True
    """

    def row(
        name: str,
        signature: str | None = None,
        *targets: object,
        only: tuple[object, ...] | None = None,
        **fields: Any,
    ) -> OpSpec:
        given = shared | fields | ({} if signature is None else {"signature": signature})
        return OpSpec(
            name=name, family=kind, targets=named(name, *targets) if only is None else only, **given
        )

    return row


def named(*items: object) -> tuple[object, ...]:
    """Targets for a row: a plain name stands for all its spellings, anything else for itself.

    The name "relu" gives ``torch.relu``, ``F.relu``, ``torch.Tensor.relu``, their in-place twins (``relu_``), and the
    strings "aten::relu" and "aten::relu_". Names that the installed torch does not have are omitted. Strings with "::"
    or "." are targets already.

    Example:
        >>> named("relu6", torch.nn.ReLU6)[-2:]
        ('aten::relu6_', <class 'torch.nn.modules.activation.ReLU6'>)
    """
    found: dict[object, None] = {}
    for item in items:
        if not isinstance(item, str) or "::" in item or "." in item:
            found[item] = None
            continue
        for name in (item, f"{item}_"):
            for space in _NAMESPACES:
                target = getattr(space, name, None)
                # torch.float is a dtype, torch.fft a module, torch.Size a class: names shared by chance.
                if callable(target) and not isinstance(target, (type, ModuleType)):
                    found[target] = None
            found[f"aten::{name}"] = None
    return tuple(found)


def present(space: object, *names: str) -> tuple[object, ...]:
    """Those of ``names`` that ``space`` has, for attributes that exist only in some torch versions.

    Example:
        >>> len(present(torch, "relu", "no_such_function"))
        1
    """
    return tuple(getattr(space, name) for name in names if hasattr(space, name))
