"""Several processes that work on one model, as ``torchrun`` starts them: they share their results.

Every function here must be called by all processes of torch's default group, and without a group it does what one
process alone would do. If a process dies, the others end with an error and do not wait for it. If one fails inside
``failing_together`` but survives, the others raise the error at their next ``gather_values``.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from sparsebit.errors import SparsebitError

# Its errors have no type of their own; the second is what it says of a connection that it has closed itself.
_GLOO = ("gloo", "pair closure")
_ADVICE = re.compile(r"^\[\S+:\d+\] |\. This is typically .*")  # where gloo's code is, and what it guesses


class ProcessError(SparsebitError):
    """Another process of the run has failed or has ended."""


class _Failure(NamedTuple):
    """The message that a failed process sends to the others, instead of the data they expect."""

    message: str


def is_distributed() -> bool:
    """Whether this is one process of a group."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    """The number of this process in its group; 0 without one."""
    return dist.get_rank() if is_distributed() else 0


def world_size() -> int:
    """The number of processes."""
    return dist.get_world_size() if is_distributed() else 1


def gather_values(value: Any) -> list[Any]:
    """The value of every process, by rank.

    Example:
        >>> gather_values("alone")
        ['alone']
    """
    if not is_distributed():
        return [value]
    gathered: list[Any] = [None] * world_size()
    with answered():
        dist.all_gather_object(gathered, value)
    if not isinstance(value, _Failure):
        for number, found in enumerate(gathered):
            if isinstance(found, _Failure):
                raise ProcessError(
                    f"this run failed on another process: {found.message}", where=f"rank {number}"
                )
    return gathered


def gather_tensor(tensor: Tensor) -> list[Tensor]:
    """A tensor that has one shape and type on every process, by rank."""
    if not is_distributed():
        return [tensor]
    tensor = tensor.contiguous()
    gathered = [torch.empty_like(tensor) for _ in range(world_size())]
    with answered():
        dist.all_gather(gathered, tensor)
    return gathered


def sum_tensors(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its sum over all processes, which is the same on all of them to the last bit."""
    _reduce(tensors, "SUM")


def max_tensors(tensors: Iterable[Tensor]) -> None:
    """Replace each tensor by its largest values over all processes."""
    _reduce(tensors, "MAX")


def share_tensors(own: Mapping[int, Tensor]) -> Iterator[Tensor]:
    """The tensors of all processes in the order of their numbers, each from the process that holds it.

    Example:
        >>> list(share_tensors({1: torch.tensor(7), 0: torch.tensor(5)}))
        [tensor(5), tensor(7)]
    """
    described = {index: (rank(), tuple(one.shape), one.dtype) for index, one in own.items()}
    everywhere = {index: found for part in gather_values(described) for index, found in part.items()}
    device = next((one.device for one in own.values()), torch.device("cpu"))
    for index, (source, shape, dtype) in sorted(everywhere.items()):
        tensor = own[index] if index in own else torch.empty(shape, dtype=dtype, device=device)
        _broadcast(tensor, source)
        yield tensor


def take_from_first(tensors: Iterable[Tensor]) -> None:
    """Replace the values of each tensor by those that the first process has."""
    for tensor in tensors:
        sent = tensor.detach().clone(memory_format=torch.contiguous_format)
        _broadcast(sent, 0)
        if rank():
            tensor.data.copy_(sent)


def require_same(values: Iterable[Tensor | str], what: str) -> None:
    """Raise an error if processes hold different numbers or texts: their results would mix two models."""
    if not is_distributed():
        return
    digest = hashlib.sha256()
    for value in values:
        if isinstance(value, str):
            digest.update(value.encode())
        else:
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    if len(set(gather_values(digest.hexdigest()))) > 1:
        raise SparsebitError(
            f"{what} differs between processes",
            expected="the same model, data, config and folder on each, and processors of one kind",
        )


def raise_together(error: Exception | None) -> None:
    """Raise an error of this process here, and in every other process as well: so none waits for the others."""
    gather_values(None if error is None else _Failure(str(error)))
    if error is not None:
        raise error


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """Wraps work on all processes: an error of one is raised on the others at their next exchange. Cannot be nested."""
    failure: Exception | None = None
    try:
        yield
    except ProcessError:
        raise  # the others know
    except Exception as error:
        failure = error
    raise_together(failure)


def _reduce(tensors: Iterable[Tensor], how: str) -> None:
    if is_distributed():
        with answered():
            for tensor in tensors:
                dist.all_reduce(tensor, op=getattr(dist.ReduceOp, how))


def _broadcast(tensor: Tensor, source: int) -> None:
    """Broadcast into ``tensor``, which is contiguous; as bytes, because back-ends do not support every type."""
    if is_distributed() and tensor.numel():
        with answered():
            dist.broadcast(tensor.detach().view(-1).view(torch.uint8), source)


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Wraps work that waits for other processes: if one is lost, the error says so; other errors are not changed."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(word in str(error) for word in _GLOO):
            raise
        raise ProcessError(
            "another process of this run has ended, or does not answer",
            where=f"rank {rank()} of {world_size()}",
            got=_ADVICE.sub("", str(error).splitlines()[0]),
            hint="the output of the other ranks shows the cause; start all of them again",
        ) from error
