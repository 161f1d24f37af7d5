"""Keep masked weights at zero during training, with any reader of the weight and any optimizer.

The model's forward is not changed: the parameter itself is held. Its gradient is masked on the way in, and after each
step of any ``torch.optim`` optimizer (momentum, decay) the masked places are set to zero again. A model can therefore
be captured, quantized or trained with fake-quantized weights as if there were no masks.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.weak import WeakTensorKeyDictionary

from sparsebit.errors import SparsebitError
from sparsebit.graph.replaced_parameters import follow_replacements

_MASKS: Any = WeakTensorKeyDictionary()  # tensor -> its mask, for as long as the tensor lives
_HOOKED: Any = WeakTensorKeyDictionary()  # parameter -> handle of its gradient hook
_watching = False


def _carry(old: Tensor, new: Tensor) -> None:
    """A parameter that replaces a held one is held in the same way."""
    mask = _MASKS.get(old)
    if mask is not None and new.shape == mask.shape:
        hold(new, mask.to(new.device))


follow_replacements(_carry)


class MaskError(SparsebitError):
    """A mask that does not fit its tensor."""


def hold(tensor: Tensor, mask: Tensor) -> None:
    """Set ``tensor`` to zero where ``mask`` (bool, same shape) is False, now and after every optimizer step.

    A new mask replaces an old one. Quantizing or folding keeps the mask; a plain copy of a parameter is
    not held: see ``hold_zeros``.

    Example:
        >>> weight = nn.Parameter(torch.ones(3))
        >>> hold(weight, torch.tensor([True, False, True]))
        >>> optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
        >>> weight.sum().backward(); optimizer.step(); weight.data
        tensor([0.9000, 0.0000, 0.9000])
    """
    if mask.shape != tensor.shape or mask.dtype != torch.bool:
        raise MaskError(
            "the mask does not fit the tensor",
            expected=f"bool {list(tensor.shape)}",
            got=f"{mask.dtype} {list(mask.shape)}",
        )
    _watch_optimizers()
    _MASKS[tensor] = mask
    _clear(tensor)
    if isinstance(tensor, nn.Parameter) and tensor.requires_grad and tensor not in _HOOKED:
        _HOOKED[tensor] = tensor.register_hook(_mask_gradient(weakref.ref(tensor)))


def release(tensor: Tensor) -> None:
    """Stop holding it; its zeros stay until something changes them."""
    _MASKS.pop(tensor, None)
    handle = _HOOKED.pop(tensor, None)
    if handle is not None:
        handle.remove()


def hold_all(tensors: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> None:
    """Hold every tensor that has a mask, by name, and release the others. Buffers are set to zero once."""
    for name, tensor in tensors.items():
        if name not in masks:
            release(tensor)
        elif isinstance(tensor, nn.Parameter):
            hold(tensor, masks[name].to(tensor.device))
        else:  # statistics adapt to the zeros
            with torch.no_grad():
                tensor.masked_fill_(~masks[name].to(tensor.device), 0)


def mask_of(tensor: Tensor) -> Tensor | None:
    """The mask that holds a tensor, on the tensor's device; None if it is not held."""
    mask: Tensor | None = _MASKS.get(tensor)
    if mask is not None and mask.device != tensor.device:
        mask = _MASKS[tensor] = mask.to(tensor.device)
    return mask


def hold_zeros(module: nn.Module, least: float = 0.05) -> dict[str, Tensor]:
    """Hold every zero of a module's weights: for a copy of a pruned model, whose parameters are new tensors.

    A parameter with two axes or more counts as pruned if at least the fraction ``least`` of it is exactly zero. Returns
    the masks by name.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> _ = layer.weight.data[0].zero_()
        >>> sorted(hold_zeros(layer))
        ['weight']
    """
    held: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        mask = parameter.detach() != 0
        if parameter.ndim > 1 and float((~mask).float().mean()) >= least:
            hold(parameter, mask)
            held[name] = mask
    return held


def _clear(tensor: Tensor) -> None:
    mask = mask_of(tensor)
    if mask is not None:
        with torch.no_grad():
            tensor.masked_fill_(~mask, 0)  # not a product: that would keep NaN and infinity


def _mask_gradient(parameter: Callable[[], Tensor | None]) -> Callable[[Tensor], Tensor | None]:
    def hook(gradient: Tensor) -> Tensor | None:
        tensor = parameter()
        mask = mask_of(tensor) if tensor is not None else None
        return None if mask is None or gradient.is_sparse else gradient.masked_fill(~mask, 0)

    return hook


def _watch_optimizers() -> None:
    global _watching
    if not _watching:
        register_optimizer_step_post_hook(_after_step)
        _watching = True


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if len(_MASKS):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                _clear(parameter)
