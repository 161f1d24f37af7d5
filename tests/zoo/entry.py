"""What one zoo entry is, and the few functions every family of entries is written with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Call = tuple[tuple[Any, ...], dict[str, Any]]


def _no_other_sizes() -> list[Call]:
    return []


@dataclass(frozen=True, kw_only=True)
class ZooEntry:
    """One unmodified model, how to call it, and what a graph front-end may expect of it.

    ``make`` draws its weights from the global generator, which the caller seeds; the model is in eval mode.
    ``inputs(batch)`` and ``other_sizes()`` return fresh tensors with the same values every time, so a model
    that writes into its inputs spoils nothing.
    """

    name: str
    family: str  # "cnn" | "rnn" | "language" | "vision" | "audio" | "nasty"
    make: Callable[[], nn.Module]
    inputs: Callable[[int], Call]
    other_sizes: Callable[[], list[Call]] = _no_other_sizes  # other lengths or image sizes, same Python path
    batches: tuple[int, ...] = (2, 3)
    trains: bool = True  # a training step makes sense: some output is a float tensor with a gradient
    symbolic: bool = False  # measured: torch.fx symbolic tracing with torch.nn leaves gives equal outputs
    refuses: str | None = None  # control flow that depends on data: a word the refusal must contain
    stateful: bool = False  # eval-mode forward changes buffers, so a second call on one model may differ
    random: bool = False  # eval-mode forward draws random numbers; equal only from equal seeds
    notes: str = ""


def zoo_entry(
    name: str, family: str, build: Callable[[], nn.Module], inputs: Callable[[int], Call], **rest: Any
) -> ZooEntry:
    """An entry whose ``make`` is ``build`` with its constant weights stirred, in eval mode."""
    return ZooEntry(name=name, family=family, make=lambda: stir(build()).eval(), inputs=inputs, **rest)


@torch.no_grad()
def stir(model: nn.Module) -> nn.Module:
    """Give every constant weight and every batch-norm statistic different values per element.

    Fresh models have zero biases, unit norms and untouched running statistics; a graph that lost one of them
    would still compute the right numbers.
    """
    for parameter in model.parameters():
        if (
            parameter.is_floating_point()
            and parameter.numel() > 1
            and bool((parameter == parameter.flatten()[0]).all())
        ):
            parameter.add_(0.1 * torch.randn_like(parameter))
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.7, 1.3)
    return model


def floats(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers of this shape, the same for the same shape and seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def integers(high: int, *shape: int, low: int = 0, seed: int = 0) -> Tensor:
    """int64 numbers in [low, high) of this shape, the same for the same shape and seed."""
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed))


def padding_mask(batch: int, length: int) -> Tensor:
    """int64 mask [batch, length]: row 0 is full, each further row ends two positions earlier."""
    lengths = torch.tensor([max(length - 2 * row, 1) for row in range(batch)])
    return (torch.arange(length)[None] < lengths[:, None]).long()


def images(size: int | tuple[int, int], channels: int = 3) -> Callable[[int], Call]:
    """Inputs of an image model: one positional tensor [batch, channels, height, width]."""
    height, width = (size, size) if isinstance(size, int) else size
    return lambda batch: ((floats(batch, channels, height, width),), {})


def image_sizes(*sizes: tuple[int, int], channels: int = 3) -> Callable[[], list[Call]]:
    """Calls of an image model at other image sizes, batch 2."""
    return lambda: [((floats(2, channels, height, width),), {}) for height, width in sizes]


def outputs_of(value: object) -> list[Tensor]:
    """Every tensor in a model's output, in order: containers, dataclasses, packed sequences, cache objects.

    A tensor that occurs twice is listed twice.

    Example:
        >>> len(outputs_of({"a": torch.ones(1), "b": [torch.ones(2), None, (3, torch.ones(1))]}))
        3
    """
    return list(_tensors(value, set()))


def _tensors(value: object, path: set[int]) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if id(value) in path:  # an object that refers back to its owner
        return []
    path = path | {id(value)}
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (list, tuple)):  # namedtuples and PackedSequence too
        parts = list(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, type) or callable(value) or not hasattr(value, "__dict__"):
        return []
    else:  # an object of the model's own, such as a key-value cache
        parts = list(vars(value).values())
    return [tensor for part in parts for tensor in _tensors(part, path)]
