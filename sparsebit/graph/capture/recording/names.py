"""The names of a model's modules and tensors, looked up once for all its recordings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn


class Names:
    """Dotted names by the ids of modules and tensors; a shared object has the first of its names."""

    def __init__(self, model: nn.Module) -> None:
        modules = dict(model.named_modules(remove_duplicate=False))
        self.paths = {id(module): path for path, module in reversed(modules.items())}
        self.state: dict[int, str] = {}  # parameters and buffers
        self.plain: dict[int, str] = {}  # tensors in other attributes
        self.parameters: dict[int, Tensor] = {}  # by their memory, to know a write into one through a view
        self.kept: list[Tensor] = []  # the ids stay valid as long as the tensors live
        for path, module in modules.items():
            for table, into in ((module._parameters, self.state), (vars(module), self.plain)):
                self._add(path, table, into)
        for path, module in modules.items():  # a tensor that is both is known as a parameter
            self._add(path, module._buffers, self.state)

    def _add(self, path: str, table: Mapping[str, Any], into: dict[int, str]) -> None:
        for key, value in table.items():
            if isinstance(value, Tensor):
                into.setdefault(id(value), f"{path}.{key}" if path else key)
                self.kept.append(value)
                if isinstance(value, nn.Parameter) and value.layout is torch.strided:
                    self.parameters.setdefault(value.untyped_storage()._cdata, value)
