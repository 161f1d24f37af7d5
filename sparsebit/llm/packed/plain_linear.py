"""Whether a module computes ``x @ weight.T + bias`` and nothing else, so that a packed layer can replace it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

_ATEN = torch.ops.aten
_VIEWS = {_ATEN.t.default, _ATEN.transpose.int, _ATEN.permute.default, _ATEN.detach.default}
_PRODUCTS = {_ATEN.mm.default, _ATEN.addmm.default}


def multiplies_only(module: nn.Module) -> bool:
    """Whether a module is an ``nn.Linear``, or derived from one and computes the same.

    Falcon's linear layer has a ``forward`` of its own that writes the product in another way. Llama 4's router is an
    ``nn.Linear`` too, but returns scores. So the ``forward`` runs on tensors without values, and its operators count.

    Example:
        >>> class Doubled(nn.Linear):
        ...     def forward(self, x):
        ...         return 2 * super().forward(x)
        >>> multiplies_only(nn.Linear(4, 4)), multiplies_only(Doubled(4, 4))
        (True, False)
    """
    if not isinstance(module, nn.Linear):
        return False
    if type(module).forward is nn.Linear.forward:
        return True
    twin = copy.copy(module)
    held = {
        name: nn.Parameter(value.to("meta"), False) for name, value in module.named_parameters(recurse=False)
    }
    twin.__dict__["_parameters"] = {"bias": None, **held}
    x = torch.empty(2, module.in_features, dtype=module.weight.dtype, device="meta")
    operators = _Operators(held.get("bias"))
    try:
        with torch.no_grad(), operators:
            result = type(module).forward(twin, x)
    except Exception:  # what it computes needs values, or more than the module has
        return False
    is_product = isinstance(result, Tensor) and result.shape == (2, module.out_features)
    return is_product and operators.products == 1 and not operators.others


class _Operators(TorchDispatchMode):
    """Counts products; ``others`` is true if there was anything but a product, views and the addition of the bias."""

    def __init__(self, bias: Tensor | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._bias = bias
        self.products, self.others = 0, False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in _PRODUCTS and not kwargs:
            self.products += 1
        elif func is _ATEN.add.Tensor and not kwargs:
            self.others |= self._bias is None or not any(argument is self._bias for argument in args)
        elif func not in _VIEWS:
            self.others = True
        return func(*args, **(kwargs or {}))
