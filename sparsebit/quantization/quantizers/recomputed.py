"""Large quantized activations are recomputed in the backward pass instead of being kept for it.

An operator keeps its input: a convolution after a quantizer keeps the quantized activation, while the quantizer and the
activation function before it keep the float one. The first can be computed from the second in one pass over memory. So
for operators with a large input, ``recompute_input`` keeps the float activation and the grid instead.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sparsebit.errors import SparsebitError

# Bytes. The few large activations of a network are most of its memory, and hooks cost host time.
LARGE = 2**25

Snap = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Kept:
    """Tensors as they were in the forward pass."""

    tensors: tuple[Tensor, ...]
    versions: tuple[int, ...]

    @classmethod
    def of(cls, *tensors: Tensor) -> Kept:
        """Keep these tensors and their current versions; their memory is shared."""
        held = tuple([tensor.detach() for tensor in tensors])
        return cls(held, tuple([tensor._version for tensor in held]))

    def get(self) -> tuple[Tensor, ...]:
        """The tensors; an error if they have been changed since."""
        if any(
            tensor._version != version for tensor, version in zip(self.tensors, self.versions, strict=True)
        ):
            raise SparsebitError(
                "a tensor that the backward pass needs was changed after the forward pass",
                expected="the activations and scales of the forward pass",
                hint="call backward() before optimizer.step(), and change no activation in place",
            )
        return self.tensors


@dataclass(frozen=True)
class Recipe:
    """How a quantized activation was computed: ``snap(x, scale, zero_point)``."""

    snap: Snap
    inputs: Kept

    def compute(self) -> Tensor:
        """The activation again, equal to the last bit."""
        with torch.no_grad():
            return self.snap(*self.inputs.get())


_recipes: dict[int, tuple[weakref.ref[Tensor], Recipe]] = {}  # of activations that are alive, by their ids


def remember_recipe(y: Tensor, snap: Snap, x: Tensor, scale: Tensor, zero_point: Tensor) -> None:
    """Store how ``y`` was computed, as long as ``y`` is alive."""
    key = id(y)

    def forget(_: Any) -> None:
        _recipes.pop(key, None)

    _recipes[key] = weakref.ref(y, forget), Recipe(snap, Kept.of(x, scale, zero_point))


def recompute_input(x: Tensor) -> contextlib.AbstractContextManager[Any] | None:
    """Hooks under which an operator does not keep ``x``; None if ``x`` is not a large quantized activation.

    Also None if other hooks are active, such as those of checkpointing, which take precedence.
    """
    if not _recipes:
        return None
    found = _recipes.get(id(x))
    if found is None or found[0]() is not x or not torch.is_grad_enabled():
        return None
    hooks: Any = torch._C._autograd
    if (
        not hooks._saved_tensors_hooks_is_enabled()
        or hooks._top_saved_tensors_default_hooks(True) is not None
    ):
        return None
    recipe, address, dtype, shape, stride = found[1], x.data_ptr(), x.dtype, x.shape, x.stride()

    def pack(tensor: Tensor) -> Recipe | Kept:
        # An alias of what the operator read, not the same object.
        same = tensor.data_ptr() == address and tensor.dtype == dtype
        return recipe if same and tensor.shape == shape and tensor.stride() == stride else Kept.of(tensor)

    return saved_tensors_hooks(pack, _unpack)


def _unpack(kept: Recipe | Kept) -> Tensor:
    return kept.compute() if isinstance(kept, Recipe) else kept.get()[0]
