"""Stacked experts whose weights stay packed: one matrix for each expert, in place of one parameter with three axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from sparsebit.llm.packed.linear import PackedLinear
from sparsebit.llm.weights.uses import BATCHED, LINEAR, MATMUL
from sparsebit.numerics.packed import PackedTensor


class PackedStack(nn.Module):
    """Replaces a parameter [experts, out, in], or [experts, in, out] if ``transposed``.

    Code that multiplies by one expert (``F.linear(x, stack[2])``) multiplies by the packed matrix. Any other use of the
    stack or of an expert receives a float tensor, unpacked for this use.

    Example:
        >>> from sparsebit.numerics import CodeType, Grid, Layout
        >>> grid = Grid(torch.ones(2), torch.zeros(2), CodeType("int", 4), Layout(kind="channel"))
        >>> stack = PackedStack([PackedTensor.of(torch.eye(2), grid), PackedTensor.of(3 * torch.eye(2), grid)])
        >>> nn.functional.linear(torch.tensor([[1.0, 2.0]]), stack[1])
        tensor([[3., 6.]])
    """

    def __init__(self, experts: Sequence[PackedTensor], *, transposed: bool = False) -> None:
        super().__init__()
        self.transposed = transposed
        for index, held in enumerate(experts):
            self.add_module(str(index), PackedLinear(held, bias=None))

    @property
    def weight(self) -> Tensor:
        """The complete stack in float, computed on each access."""
        return torch.stack([self[index].weight for index in range(len(self))])

    def __len__(self) -> int:
        return len(self._modules)

    def __getitem__(self, index: Any) -> Any:
        """One expert; for any other index, that part of the float stack."""
        if isinstance(index, int) or (isinstance(index, Tensor) and index.dim() == 0):
            return PackedExpert(self.layer(range(len(self))[int(index)]), transposed=self.transposed)
        return self.weight[index]

    def layer(self, index: int) -> PackedLinear:
        """The packed matrix of an expert, as a layer."""
        found = self._modules[str(index)]
        assert isinstance(found, PackedLinear)
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if func in BATCHED and len(args) == 2 and isinstance(args[1], cls) and args[1].transposed:
            x, stack = args
            return torch.stack([stack.layer(index)(one) for index, one in enumerate(x)])
        return _call_unpacked(func, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Attributes of a tensor (``shape``, ``transpose``), from the float stack."""
        if name in self.__dict__.get("_modules", {}) or name.startswith("_") or not hasattr(Tensor, name):
            return super().__getattr__(name)
        return getattr(self.weight, name)


class PackedExpert:
    """One matrix of a stack: products use its packed layer, everything else the float weight."""

    def __init__(self, layer: PackedLinear, *, transposed: bool) -> None:
        self.layer, self.transposed = layer, transposed

    @property
    def weight(self) -> Tensor:
        """The float weight as the model stores it, computed on each access."""
        return self.layer.weight.T if self.transposed else self.layer.weight

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if len(args) == 2 and not kwargs and isinstance(args[1], cls) and isinstance(args[0], Tensor):
            x, expert = args
            if func in (MATMUL if expert.transposed else LINEAR):
                return expert.layer(x)
        return _call_unpacked(func, args, kwargs)

    def __getitem__(self, index: Any) -> Tensor:
        return self.weight[index]

    def __getattr__(self, name: str) -> Any:
        """Attributes of a tensor, from the float weight."""
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.weight, name)


def _call_unpacked(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    def unpack(value: Any) -> Any:
        return value.weight if isinstance(value, (PackedStack, PackedExpert)) else value

    return func(*tree_map(unpack, args), **tree_map(unpack, kwargs or {}))


def module_name(layer: str) -> str:
    """The name of the module that holds a packed matrix.

    Example:
        >>> module_name("mlp.experts.down_proj[3]")
        'mlp.experts.down_proj.3'
    """
    return layer.replace("[", ".").removesuffix("]")
