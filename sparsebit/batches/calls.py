"""The arguments of one call of a model: made from examples, moved to a device, cut to a few samples."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from sparsebit.errors import SparsebitError, with_article


class Call(NamedTuple):
    """The arguments of one call of a model."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012


def example_call(example_inputs: Any = None, example_kwargs: Mapping[str, Any] | None = None) -> Call:
    """The call for example inputs: a tuple of positional arguments, a dict of keyword arguments, or one tensor.

    Example:
        >>> example_call({"ids": 1}, {"mask": 2})
        Call(args=(), kwargs={'ids': 1, 'mask': 2})
    """
    if not isinstance(example_kwargs, Mapping | None):
        raise SparsebitError(
            "example_kwargs holds the keyword arguments of a call",
            expected="a dict",
            got=with_article(type(example_kwargs).__name__),
        )
    if isinstance(example_inputs, Call):
        return Call(example_inputs.args, {**example_inputs.kwargs, **(example_kwargs or {})})
    if isinstance(example_inputs, Mapping):
        return Call((), {**example_inputs, **(example_kwargs or {})})
    if isinstance(example_inputs, (tuple, list)):
        return Call(tuple(example_inputs), dict(example_kwargs or {}))
    return Call(() if example_inputs is None else (example_inputs,), dict(example_kwargs or {}))


def as_call(data: Any) -> Call:
    """As ``example_call``; a pair of a tuple and a dict is positional and keyword arguments.

    Example:
        >>> as_call(((1,), {"mask": 2}))
        Call(args=(1,), kwargs={'mask': 2})
    """
    if (
        isinstance(data, tuple)
        and len(data) == 2
        and isinstance(data[0], (tuple, list))
        and isinstance(data[1], dict)
    ):
        return Call(tuple(data[0]), dict(data[1]))
    return example_call(data)


def device_of(model: object, default: torch.device | str = "cpu") -> torch.device:
    """The device of a module's parameters, or of its buffers; ``default`` if it has neither.

    Example:
        >>> device_of(nn.Linear(2, 2)), device_of(nn.ReLU(), "meta")
        (device(type='cpu'), device(type='meta'))
    """
    tensors = itertools.chain(model.parameters(), model.buffers()) if isinstance(model, nn.Module) else ()
    return next((tensor.device for tensor in tensors), torch.device(default))


def to_device(value: Any, device: torch.device) -> Any:
    """The same value with every tensor on one device; an error for a tensor without values."""

    def move(tensor: Tensor) -> Tensor:
        if tensor.is_meta and device.type != "meta":
            raise SparsebitError(
                "a tensor of the data is on the meta device, which keeps no values",
                hint="create it on a real device",
            )
        return tensor.to(device)

    return pytree.tree_map_only(Tensor, move, value)


def copied(call: Call) -> Call:
    """The same call with copies of its tensors, without gradients."""
    return Call(*pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), tuple(call)))


def fit_examples(model: nn.Module, examples: Call) -> Call:
    """Example inputs on the device of a model's parameters; floating-point ones also in their dtype."""
    like = next(model.parameters(), None)
    if like is None:
        return examples

    def fit(tensor: Tensor) -> Tensor:
        return tensor.to(like.device, like.dtype if tensor.is_floating_point() else tensor.dtype)

    return Call(*pytree.tree_map_only(Tensor, fit, tuple(examples)))


def few(call: Call, samples: int = 2) -> Call:
    """A call with the first samples only, if all its tensors are dense and have the same number of samples."""
    tensors = [leaf for leaf in pytree.tree_leaves(tuple(call)) if isinstance(leaf, Tensor)]
    if any(tensor.is_nested or tensor.layout is not torch.strided for tensor in tensors):
        return call
    if len({len(t) if t.dim() else -1 for t in tensors}) != 1 or tensors[0].dim() == 0:
        return call
    return Call(*pytree.tree_map_only(Tensor, lambda tensor: tensor[:samples].clone(), tuple(call)))


def crop_like(call: Call, dummy: Any) -> Call | None:
    """As many samples of a recorded call as ``dummy`` has; None if their shapes or types differ."""
    ours, structure = pytree.tree_flatten(tuple(call))
    theirs = [leaf for leaf in pytree.tree_leaves(dummy) if isinstance(leaf, Tensor)]
    tensors = [leaf for leaf in ours if isinstance(leaf, Tensor)]
    if len(tensors) != len(theirs) or not tensors:
        return None
    for mine, other in zip(tensors, theirs, strict=True):
        if mine.dtype != other.dtype or mine.dim() != other.dim() or mine.dim() == 0:
            return None
        if mine.shape[1:] != other.shape[1:] or len(mine) < len(other):
            return None
    counts = iter(len(other) for other in theirs)
    cut = [leaf[: next(counts)] if isinstance(leaf, Tensor) else leaf for leaf in ours]
    return Call(*pytree.tree_unflatten(cut, structure))


def show_shapes(call: Call) -> str:
    """The types and shapes of the arguments, for a message."""

    def shape(value: Any) -> str:
        if isinstance(value, Tensor):
            return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        return type(value).__name__

    return ", ".join([*map(shape, call.args), *(f"{name}={shape(v)}" for name, v in call.kwargs.items())])


def require_dense(*inputs: Any, allow_sparse: bool = False) -> None:
    """Raise an error for nested tensors, and for sparse ones if a model is quantized or pruned."""
    for leaf in pytree.tree_leaves(inputs):
        if not isinstance(leaf, Tensor):
            continue
        if leaf.is_nested or (leaf.layout is not torch.strided and not allow_sparse):
            kind = "a nested tensor" if leaf.is_nested else f"a tensor of layout {leaf.layout}"
            raise SparsebitError(
                "the inputs of the model must be dense tensors",
                got=kind,
                hint="pass tensor.to_dense(), or pad it",
            )
