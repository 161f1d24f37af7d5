"""What every captured zoo model is held against: the same model, run eagerly."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from tests.zoo import ZooEntry, outputs_of

Call = tuple[tuple[Any, ...], dict[str, Any]]


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Switch off the fused inference kernel of nn.MultiheadAttention.

    In eval mode without gradients torch replaces the module's own computation by one kernel that rounds differently;
    a graph holds the module's own computation, which is also what runs with gradients.
    """
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


@contextlib.contextmanager
def third_party_warnings_ignored() -> Iterator[None]:
    """Models warn about themselves (deprecations, slow paths); ours must still fail the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def fresh(entry: ZooEntry) -> nn.Module:
    """The entry's model; the same weights every time."""
    torch.manual_seed(0)
    with third_party_warnings_ignored():
        return entry.make()


def run(module: nn.Module, call: Call) -> list[Tensor]:
    """All output tensors of one call from a fixed random state."""
    args, kwargs = copy.deepcopy(call)  # a model may write into its inputs
    torch.manual_seed(1)
    with torch.no_grad(), plain_attention():
        return outputs_of(module(*args, **kwargs))


def same(left: list[Tensor], right: list[Tensor]) -> str | None:
    """None, or how two lists of tensors differ in a single bit."""
    if len(left) != len(right):
        return f"{len(left)} outputs against {len(right)}"
    for index, (one, two) in enumerate(zip(left, right, strict=True)):
        if one.shape != two.shape or one.dtype != two.dtype:
            return f"output {index}: {tuple(one.shape)} {one.dtype} against {tuple(two.shape)} {two.dtype}"
        if not torch.equal(torch.nan_to_num(one), torch.nan_to_num(two)):
            return f"output {index} is off by up to {(one.double() - two.double()).abs().max().item():.3g}"
    return None


def train_step(module: nn.Module, call: Call) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients and buffers after one training step's forward and backward from a fixed random state."""
    args, kwargs = copy.deepcopy(call)
    module.zero_grad()
    torch.manual_seed(2)
    with plain_attention():
        outputs = [
            out
            for out in outputs_of(module(*args, **kwargs))
            if out.is_floating_point() and out.requires_grad
        ]
    loss = sum((out.float() * torch.linspace(-1, 1, out.numel()).view_as(out)).sum() for out in outputs)
    assert isinstance(loss, Tensor)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
    return gradients, {name: buffer.clone() for name, buffer in module.state_dict().items()}
