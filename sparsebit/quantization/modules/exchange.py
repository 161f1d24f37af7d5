"""Replace a quantizer by one of another kind with the same grid."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from torch import nn

from sparsebit.config import Options
from sparsebit.quantization.quantizers import Quantizer

Kind = TypeVar("Kind", bound=Quantizer)


def is_plain(quantizer: Quantizer) -> bool:
    """Whether a quantizer only rounds to the nearest value of its grid, under any name."""
    methods = ("prepare", "scale_and_zero_point", "grid", "snap", "forward")
    return not quantizer.MAGNITUDE and all(
        getattr(type(quantizer), name) is getattr(Quantizer, name) for name in methods
    )


def exchange_quantizer(gm: nn.Module, old: Quantizer, kind: type[Kind]) -> Kind:
    """Put a ``kind`` with the same name, grid and switches wherever the model holds ``old``; returns it."""
    grid = old.grid()
    spec = replace(old.spec, quantizer=kind.TYPE, quantizer_options=Options())
    new = kind(old.name, old.side, spec, old.layout).to(old.scale.device)
    new.set_grid(grid.scale, grid.zero_point)
    new.use_quant, new.fake_fused, new.observing = old.use_quant, old.fake_fused, old.observing
    new.training = old.training
    for module in gm.modules():
        for name, child in module._modules.items():
            if child is old:
                module._modules[name] = new
    return new
