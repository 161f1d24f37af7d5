"""Tensors of the model or the data that plug-ins read, and must not write into."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from sparsebit.errors import PlugInError, running_plug_in


@contextmanager
def lending(doing: str, plug_ins: Sequence[object], *tensors: Tensor) -> Iterator[None]:
    """Run plug-ins on tensors that belong to the model or to its data; an error if one writes into them.

    Example:
        >>> import torch
        >>> class Mine: ...
        >>> x = torch.ones(2)
        >>> with lending("'mine' cannot measure 'conv1'", [Mine()], x):
        ...     _ = x.mul_(2)
        Traceback (most recent call last):
            ...
        sparsebit.errors.PlugInError: 'mine' cannot measure 'conv1': it wrote into a tensor that it was only to read
          next: compute a new tensor instead, and load the model again: its weights may have changed
    """
    before = [version_of(one) for one in tensors]
    with running_plug_in(doing, *plug_ins):
        yield
    if before != [version_of(one) for one in tensors]:
        raise PlugInError(
            f"{doing}: it wrote into a tensor that it was only to read",
            hint="compute a new tensor instead, and load the model again: its weights may have changed",
        )


def version_of(tensor: Tensor) -> int:
    """How often a tensor was written into; 0 for those of inference mode, which do not count."""
    return 0 if tensor.is_inference() else tensor._version
