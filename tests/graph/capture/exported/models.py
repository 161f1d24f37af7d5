"""Models for the front-end over ``torch.export``, and its programs without its warnings."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram


class Small(nn.Module):
    """Modules, functions, sizes, and state of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Dropout(0.5))
        self.scale = nn.Parameter(torch.randn(4))
        self.register_buffer("offset", torch.randn(4))
        self.register_buffer("mask", torch.ones(4), persistent=False)

    def forward(self, x: Tensor, shift: Tensor | None = None) -> dict[str, Any]:
        y = self.body(x) * self.scale + self.offset * self.mask
        y = y.view(x.size(0), 2, -1).transpose(1, 2).reshape(x.size(0), -1).softmax(-1)
        return {"y": y if shift is None else y + shift, "parts": [y.mean(), None]}


def export(model: nn.Module, *args: Any, **options: Any) -> ExportedProgram:
    """The program of a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, about its own internals
        return torch.export.export(model, args, **options)
