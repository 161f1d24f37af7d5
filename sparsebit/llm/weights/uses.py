"""Which weights a block multiplies by, and the activations, observed while it runs.

A torch function mode watches the products themselves, not the modules around them. So ``nn.Linear``, the transposed
``Conv1D`` of GPT-2, a bare ``F.linear`` and one expert out of a stack [experts, out, in] are treated alike: a product
with a matrix that is inside a parameter of the block.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sparsebit.graph.opened import OPENED, run_opened


class Matrix(NamedTuple):
    """One matrix of weights: a parameter, or one entry of a stacked parameter."""

    name: str  # of the parameter, inside the block
    expert: int | None = None  # which one, where the parameter has three axes
    transposed: bool = False  # stored as [in, out]

    def __str__(self) -> str:
        return self.name if self.expert is None else f"{self.name}[{self.expert}]"

    @classmethod
    def parse(cls, text: str, *, transposed: bool) -> Matrix:
        """Parse the result of ``str``.

        Example:
            >>> Matrix.parse("experts.down[2]", transposed=False)
            Matrix(name='experts.down', expert=2, transposed=False)
        """
        name, _, expert = text.removesuffix("]").partition("[")
        return cls(name, int(expert) if expert else None, transposed)


class Use(NamedTuple):
    """One product: the matrix, and the activations [..., in] it is multiplied with."""

    matrix: Matrix
    inputs: Tensor


Seen = Callable[[Use], object]


class Enough(Exception):
    """Raised to stop a run early: the requested value was found, and the rest of the model is not needed."""


def stores_transposed(module: nn.Module) -> bool:
    """Whether a module stores its weights as [in, out]: GPT-2's Conv1D, experts with such a flag, and Llama 4's."""
    known = type(module).__name__ in ("Conv1D", "Llama4TextExperts")
    return known or bool(getattr(module, "is_transposed", False))


LINEAR = {F.linear}
MATMUL = {torch.matmul, torch.mm, torch.Tensor.matmul, torch.Tensor.mm, torch.Tensor.__matmul__}
_ADDMM = {torch.addmm, torch.Tensor.addmm}
BATCHED = {torch.bmm, torch.Tensor.bmm}
_BADDBMM = {torch.baddbmm, torch.Tensor.baddbmm}
PRODUCTS: frozenset[Any] = frozenset(LINEAR | MATMUL | _ADDMM | BATCHED | _BADDBMM)


class WatchWeights(TorchFunctionMode):
    """While active, ``seen`` is called before each product with a weight of ``parameters``."""

    def __init__(self, parameters: Mapping[str, nn.Parameter | Tensor], seen: Seen) -> None:
        super().__init__()
        self._by_storage = {
            parameter.untyped_storage().data_ptr(): (name, parameter)
            for name, parameter in parameters.items()
            if parameter.dim() in (2, 3) and parameter.is_floating_point()
        }
        self._seen = seen

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in OPENED:
            return run_opened(self, func, args, kwargs)
        if (func in BATCHED and len(args) == 2) or (func in _BADDBMM and len(args) == 3):
            for one in self._stacked(args[-1], args[-2]):
                self._seen(one)
        elif use := self._use(func, args, kwargs):
            self._seen(use)
        return func(*args, **kwargs)

    def _use(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Use | None:
        if func in LINEAR:
            weight = args[1] if len(args) > 1 else kwargs.get("weight")
            return self._found(weight, args[0] if args else kwargs["input"], transposed=False)
        if func in MATMUL and len(args) == 2:
            left, right = args
            found = self._found(right, left, transposed=True)
            if found is None and isinstance(right, Tensor) and right.dim() > 1:
                found = self._found(left, right.mT, transposed=False)  # weight @ columns (Mamba)
            return found
        if func in _ADDMM and len(args) == 3:
            return self._found(args[2], args[1], transposed=True)
        return None

    def _stacked(self, weight: Any, inputs: Any) -> Iterator[Use]:
        """A complete stack of experts in one product: rows of zeros are tokens that were not routed to the expert."""
        known = (
            self._by_storage.get(weight.untyped_storage().data_ptr()) if isinstance(weight, Tensor) else None
        )
        if known is None or known[1].dim() != 3:
            return
        for transposed, stored in ((True, known[1]), (False, known[1].mT)):
            if weight.shape == stored.shape and weight.stride() == stored.stride():
                for expert, rows in enumerate(inputs):
                    yield Use(Matrix(known[0], expert, transposed), rows[rows.any(-1)])
                return

    def _found(self, weight: Any, inputs: Any, *, transposed: bool) -> Use | None:
        if not isinstance(weight, Tensor) or not isinstance(inputs, Tensor) or weight.dim() != 2:
            return None
        known = self._by_storage.get(weight.untyped_storage().data_ptr())
        if known is None:
            return None
        name, parameter = known
        index = None
        if parameter.dim() == 3:
            offset = int(weight.storage_offset()) - int(parameter.storage_offset())
            index, rest = divmod(offset, parameter.stride(0))
            if rest or weight.numel() != parameter[0].numel():
                return None
        elif weight.numel() != parameter.numel():
            return None
        stored = parameter if index is None else parameter[index]
        if weight.shape != stored.shape or weight.stride() != stored.stride():
            if weight.shape != stored.T.shape or weight.stride() != stored.T.stride():
                return None
            transposed = not transposed
        return Use(Matrix(name, index, transposed), inputs)


@torch.no_grad()
def first_input(
    parameters: Mapping[str, Tensor], run: Callable[[], object], matrix: Matrix | None = None
) -> Tensor | None:
    """The first input multiplied by ``matrix``, or by any weight of ``parameters``; ``run`` is stopped there."""
    found: list[Tensor] = []

    def see(use: Use) -> None:
        if matrix is None or use.matrix == matrix:
            found.append(use.inputs)
            raise Enough

    with contextlib.suppress(Enough), WatchWeights(parameters, see):
        run()
    return found[0] if found else None
