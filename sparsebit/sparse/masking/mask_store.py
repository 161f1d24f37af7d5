"""Masks as buffers, which are saved, moved and loaded with the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn


class MaskStore(nn.Module):
    """Bool tensors by dotted name. A buffer's name cannot have dots, so the state dict has slashes instead.

    Example:
        >>> store = MaskStore({"layer1.conv": torch.ones(2, dtype=torch.bool)})
        >>> list(store.state_dict()), dict(store.items())
        (['layer1/conv'], {'layer1.conv': tensor([True, True])})
    """

    def __init__(self, masks: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, mask in masks.items():
            self.register_buffer(_key(name), mask)

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Names and masks."""
        return ((_name(key), mask) for key, mask in self.named_buffers())

    def as_dict(self) -> dict[str, Tensor]:
        """The masks by name."""
        return dict(self.items())

    def update(self, masks: Mapping[str, Tensor]) -> None:
        """Overwrite the masks with new ones of the same shapes."""
        with torch.no_grad():
            for name, mask in masks.items():
                self.get_buffer(_key(name)).copy_(mask)


def _key(name: str) -> str:
    """The name of the buffer; a slash in the user's name is escaped, so that no two names collide."""
    return name.replace("%", "%25").replace("/", "%2F").replace(".", "/")


def _name(key: str) -> str:
    return key.replace("/", ".").replace("%2F", "/").replace("%25", "%")
