"""From what a data loader gives to a call of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor

from sparsebit.errors import SparsebitError

Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments


def as_call(
    batch: Any, example_args: tuple[Any, ...], example_kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments for one batch.

    Labels and other extras are left out by the example: as many items of a tuple as it had positional inputs, and of
    a dict the keys it had. Without an example a tuple gives its first item and a dict all of it; where the example had
    both kinds, only a dict with everything by name will do.

    Example:
        >>> as_call(("images", "labels"), ("example",), {})
        (('images',), {})
    """
    if isinstance(batch, Tensor):
        return (batch,), {}
    if isinstance(batch, Mapping):
        if example_kwargs and example_args:  # some of it may be positional in the example
            return (), dict(batch)
        if example_kwargs:
            missing = [key for key in example_kwargs if key not in batch]
            if missing:
                raise SparsebitError(
                    f"the batch has no {missing[0]!r}",
                    expected=f"a dict with {', '.join(example_kwargs)}, as in example_kwargs",
                    got=f"a dict with {', '.join(map(str, batch))}",
                    hint="pass feed= to make the arguments of a batch yourself",
                )
            return (), {key: batch[key] for key in example_kwargs}
        if len(example_args) == 1 and isinstance(example_args[0], Mapping):
            return (batch,), {}
        return (), dict(batch)
    if isinstance(batch, (tuple, list)):
        if example_args and example_kwargs:
            raise SparsebitError(
                "the example has positional and keyword inputs, so a batch has to name them",
                expected="a dict with all of them",
                got=type(batch).__name__,
                hint="pass feed= to make the arguments of a batch yourself",
            )
        count = len(example_args) or 1
        if len(batch) < count:
            raise SparsebitError(
                f"the batch has {len(batch)} items, the model takes {count} inputs",
                hint="pass feed= to make the arguments of a batch yourself",
            )
        return tuple(batch[:count]), {}
    raise SparsebitError(
        "cannot tell what the model's inputs are in this batch",
        expected="a tensor, a tuple, a list or a dict",
        got=type(batch).__name__,
        hint="pass feed= to make the arguments of a batch yourself",
    )


def as_fed(made: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same for what ``feed`` returned, which is taken as it is.

    Example:
        >>> as_fed({"ids": 1}), as_fed((1, 2))
        (((), {'ids': 1}), ((1, 2), {}))
    """
    if isinstance(made, Tensor):
        return (made,), {}
    if isinstance(made, Mapping):
        return (), dict(made)
    if isinstance(made, (tuple, list)):
        return tuple(made), {}
    raise SparsebitError(
        "feed returned nothing the model could be called with",
        expected="a tuple of positional arguments or a dict of keyword arguments",
        got=type(made).__name__,
    )


def to_device(value: Any, device: torch.device) -> Any:
    """The same value with every tensor on one device."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), value)


def crop_like(call: Call, dummy: Any) -> Call | None:
    """As many samples of a recorded call as ``dummy`` has; None where the two are not of one kind."""
    ours, structure = pytree.tree_flatten(call)
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
    args, kwargs = pytree.tree_unflatten(cut, structure)
    return args, kwargs
