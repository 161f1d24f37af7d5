"""Old import paths: removed modules are restored, and existing modules get their old names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType

from sparsebit.compat.extra_info import add_extra_info_to_onnx
from sparsebit.compat.names import GONE, GONE_FILES, MOVED, OldNameError, find
from sparsebit.quantization import QuantModel
from sparsebit.quantization.modules.qmodules import QuantOpr, Reader
from sparsebit.quantization.quantizers import Quantizer


def add_old_paths() -> None:
    """Make every path of ``names`` importable. Names that still exist keep their current meaning."""
    for path in dict.fromkeys([*(path.rpartition(".")[0] for path in [*MOVED, *GONE]), *GONE_FILES]):
        module = _module(path)
        if not isinstance(vars(module).get("__getattr__"), _OldNames):
            vars(module)["__getattr__"] = _OldNames(module.__name__, vars(module).get("__getattr__"))
    for owner, name, value in OLD_ATTRIBUTES:
        setattr(owner, name, value)


class _OldNames:
    """A module's ``__getattr__``: looks up an unknown name among the old ones."""

    def __init__(self, module: str, otherwise: Callable[[str], object] | None) -> None:
        self.module, self.otherwise = module, otherwise

    def __call__(self, name: str) -> object:
        path = f"{self.module}.{name}"
        if path in MOVED or path in GONE or (self.module in GONE_FILES and not name.startswith("__")):
            return find(path)
        if self.otherwise is not None:
            return self.otherwise(name)
        raise AttributeError(f"module {self.module!r} has no attribute {name!r}")


def _module(path: str) -> ModuleType:
    """The module of that path: the existing one, or a new empty one."""
    if path in sys.modules:
        return sys.modules[path]
    parent_path, _, name = path.rpartition(".")
    parent = _module(parent_path)
    if importlib.util.find_spec(path) is not None:
        return importlib.import_module(path)
    module = ModuleType(path, "Names of the old Sparsebit, put here by sparsebit.compat.")
    module.__path__ = []  # a package without files: its parts are put beside it in the same way
    sys.modules[path] = module
    if path not in GONE:  # a function of that name: reading it from the parent says what replaces it
        setattr(parent, name, module)
    return module


def _add_extra_info(self: QuantModel, onnx_path: str) -> str:
    return str(add_extra_info_to_onnx(onnx_path))


def _removed(name: str, instead: str) -> property:
    def refuse(self: object) -> object:
        raise OldNameError(f"{name} of the old Sparsebit does not exist here", hint=f"use {instead}")

    return property(refuse)


_BUILD = _removed("build_quantizer", "QuantModel(model, config), which makes all quantizers")
# Attributes of old objects that today's classes do not declare.
OLD_ATTRIBUTES: tuple[tuple[type, str, object], ...] = (
    (QuantModel, "add_extra_info_to_onnx", _add_extra_info),
    (Quantizer, "qdesc", _removed("qdesc", "quantizer.spec, .code and .layout, and set_bit(bits)")),
    (Reader, "build_quantizer", _BUILD),
    (QuantOpr, "build_quantizer", _BUILD),
)
