"""Results that the next run of a block does not need to compute again.

The weights of a block are solved stage by stage, and each stage is measured after the earlier ones are solved, so the
block runs once for each stage. Everything that a run computes before the measured weights is final, because it depends
on solved weights only. The outputs of finished modules are kept, and inside unfinished ones the results of products and
attention, in order. The next run reuses them, so that all runs together cost little more than one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch.nn.functional as F
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sparsebit.graph.opened import OPENED, run_opened
from sparsebit.llm.blocks.spill import MOST_BYTES
from sparsebit.llm.weights.uses import PRODUCTS, Matrix

_KEPT = PRODUCTS | {F.scaled_dot_product_attention}


class _Result(NamedTuple):
    """The result of a call, and the call counts at its end, which skip the calls inside it."""

    value: Any
    versions: list[int]  # torch counts in-place writes
    products: int
    modules: int

    @property
    def unchanged(self) -> bool:
        return self.versions == _versions(self.value)


class Replay:
    """What earlier runs of a block computed, for each batch, up to ``limit`` bytes in all.

    ``solved`` are the matrices whose products are final.
    """

    def __init__(self, block: nn.Module, batches: int, limit: int = MOST_BYTES) -> None:
        self._modules = [one for one in block.modules() if one is not block] if limit else []
        self._kept: list[tuple[dict[int, _Result], dict[int, _Result]]] = [({}, {}) for _ in range(batches)]
        self._left = limit
        self.solved: set[Matrix] = set()

    def run(self, batch: int) -> ReplayedRun:
        """A mode in which the block is run on one batch."""
        return ReplayedRun(self, self._modules, *self._kept[batch])

    def take(self, size: int) -> bool:
        """Reserve this many bytes if there is room, and return whether there was; a negative number frees them."""
        fits = size <= self._left
        self._left -= size if fits else 0
        return fits


class ReplayedRun(TorchFunctionMode):
    """While active, returns results that were kept, and keeps further ones until ``stop`` is called."""

    def __init__(
        self,
        replay: Replay,
        modules: list[nn.Module],
        products: dict[int, _Result],
        outputs: dict[int, _Result],
    ) -> None:
        super().__init__()
        self._replay = replay
        # with the instance's own forward, if it has one
        self._modules = [(module, vars(module).get("forward")) for module in modules]
        self._products, self._outputs = products, outputs  # by the number of the call
        self._product, self._module, self._final = 0, 0, True

    def __enter__(self) -> ReplayedRun:
        for module, _ in self._modules:
            module.forward = partial(self._run_module, module.forward)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for module, own in self._modules:
            del module.forward
            if own is not None:
                module.forward = own

    def stop(self) -> None:
        """Keep no further results: they depend on weights that are not solved yet."""
        self._final = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in OPENED:
            return run_opened(self, func, args, kwargs)
        if func not in _KEPT:
            return func(*args, **(kwargs or {}))
        number, self._product = self._product, self._product + 1
        known = self._products.get(number)
        if known is not None and known.unchanged:
            return known.value
        result = func(*args, **(kwargs or {}))
        self._keep(self._products, number, result)
        return result

    def _run_module(self, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        number, product, self._module = self._module, self._product, self._module + 1
        known = self._outputs.get(number)
        if known is not None and known.unchanged:
            self._product, self._module = known.products, known.modules
            return known.value
        output = forward(*args, **kwargs)
        if self._keep(self._outputs, number, output):
            self._forget(self._products, product, self._product)
            self._forget(self._outputs, number + 1, self._module)
        return output

    def _keep(self, place: dict[int, _Result], number: int, value: Any) -> bool:
        # What is written into tensors of inference mode is not counted.
        counted = not any(one.is_inference() for one in _tensors(value))
        if not self._final or not counted or not self._replay.take(_size(value)):
            return False
        self._forget(place, number, number + 1)
        place[number] = _Result(value, _versions(value), self._product, self._module)
        return True

    def _forget(self, place: dict[int, _Result], start: int, end: int) -> None:
        for number in range(start, end):
            if number in place:
                self._replay.take(-_size(place.pop(number).value))


def _tensors(value: Any) -> list[Tensor]:
    return [one for one in pytree.tree_leaves(value) if isinstance(one, Tensor)]


def _versions(value: Any) -> list[int]:
    return [one._version for one in _tensors(value)]


def _size(value: Any) -> int:
    return sum(one.nbytes for one in _tensors(value))
