"""What engines do to activations before a packed weight: blocks of channels rounded to 8 bits.

The same rounding in torch gives the size of the difference that an engine's arithmetic makes. The engine's own values
are not reproduced by it: a difference in the last bit of an earlier layer moves values over the border between two
steps, so two such computations differ from each other as much as each of them differs from float.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

NUDGE = 0.1  # of a step: moves a few values over a border, and adds hardly any error


class Rounding(NamedTuple):
    """Input channels that share a scale, and the type of that scale."""

    block: int
    scale_dtype: torch.dtype


def round_to_8_bits(x: Tensor, rounding: Rounding, nudge: torch.Generator | None = None) -> Tensor:
    """``x`` [..., in] with each block at 255 steps between its largest magnitude and its negative.

    ``nudge`` moves every value by up to ``NUDGE`` of a step first, at random.

    Example:
        >>> round_to_8_bits(torch.tensor([127.0, 0.4, -3.6, 0.0]), Rounding(4, torch.float32))
        tensor([127.,   0.,  -4.,   0.])
    """
    blocks = x.float().unflatten(-1, (-1, rounding.block))
    scale: Tensor = blocks.abs().amax(-1, keepdim=True) / 127
    exact: Tensor = blocks * torch.where(scale > 0, 1 / scale, 0)
    if nudge is not None:
        exact = exact + NUDGE * (2 * torch.rand(exact.shape, generator=nudge).to(exact) - 1)
    steps = exact.round()
    rounded: Tensor = steps * scale.to(rounding.scale_dtype).float()
    return rounded.flatten(-2).to(x.dtype)


@contextmanager
def rounded_inputs(
    model: nn.Module, layers: Mapping[str, Rounding], nudge: torch.Generator | None = None
) -> Iterator[None]:
    """Inside, the inputs of these layers are rounded, as an engine does."""

    def hook(rounding: Rounding) -> Any:
        return lambda module, args: (round_to_8_bits(args[0], rounding, nudge), *args[1:])

    with ExitStack() as hooks:
        for name, rounding in layers.items():
            hooks.enter_context(model.get_submodule(name).register_forward_pre_hook(hook(rounding)))
        yield
