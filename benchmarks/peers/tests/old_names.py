"""Every public name of the 2022 Sparsebit, imported from its old path after ``import sparsebit.compat``."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.peers.tests.suite import NotApplicable, Suite
from sparsebit.compat import OldNameError


def run_old_names(folder: Path) -> Suite:
    """Names that the clone's package defines at the top of its files; those that begin with ``_`` are left out."""
    suite = Suite(
        "names of the 2022 Sparsebit",
        "classes, functions and constants of its package; sparsebit.compat has them",
    )
    for path in sorted((folder / "sparsebit").rglob("*.py")):
        module = ".".join(path.relative_to(folder).with_suffix("").parts).removesuffix(".__init__")
        for name in public_names(path.read_text(encoding="utf-8")):
            suite.run(f"{module}.{name}", partial(_import, module, name))
    return suite


def public_names(source: str) -> Iterator[str]:
    """Classes, functions and constants at the top of a file."""
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            names = [statement.name]
        elif isinstance(statement, ast.Assign):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
        else:
            names = []
        yield from (name for name in names if name == "_C" or not name.startswith("_"))


def _import(module: str, name: str) -> None:
    try:
        getattr(importlib.import_module(module), name)
    except OldNameError:
        raise NotApplicable("removed; the error says what replaces it") from None
