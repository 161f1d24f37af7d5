"""The operator that replaces a quantizer while a graph is translated, and the tensor that it represents.

A marker only carries the name of a tensor. Everything about that tensor is in its ``Marked``, so no
exporter in between can change a scale, fold a weight or lose a name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from sparsebit.errors import ExportError
from sparsebit.numerics import Grid, choose_grid
from sparsebit.numerics.snapping import snap
from sparsebit.quantization.quantizers import Quantizer

DOMAIN = "sparsebit"
OP_TYPE = "Mark"

_library = torch.library.Library(DOMAIN, "FRAGMENT")
_library.define("mark(Tensor x, str key) -> Tensor")
_library.impl("mark", lambda x, key: x.clone(), "CompositeExplicitAutograd")
torch.library.register_fake(f"{DOMAIN}::mark", lambda x, key: torch.empty_like(x), lib=_library)


def mark(x: Tensor, key: str) -> Tensor:
    """``x``, with a node named ``key`` in any graph traced through here."""
    marked: Tensor = torch.ops.sparsebit.mark(x, key)
    return marked


@dataclass
class Marked:
    """One quantized tensor, as it will be in the file."""

    name: str
    side: str  # "W" or "A"
    bits: int
    grid: Grid  # scale and zero point in float32 on the CPU
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32  # of the numbers
    scheme: str = ""
    codes: Tensor | None = None  # of a weight, in its own shape

    @property
    def per_tensor(self) -> bool:
        """Whether the tensor has a single scale."""
        return self.grid.scale.numel() == 1


@dataclass
class Markers:
    """Every tensor that was marked, by name."""

    tensors: dict[str, Marked] = field(default_factory=dict)
    dynamic: list[str] = field(default_factory=list)  # one scale per token, computed at run time
    largest: dict[str, float] = field(default_factory=dict)  # largest result of each weight, by its name

    def note(self, quantizer: Quantizer, x: Tensor) -> Tensor:
        """Record what a quantizer does to a tensor, and return its result."""
        if quantizer.name not in self.tensors:
            self.tensors[quantizer.name] = _describe(quantizer, x)
        return quantizer.snap(x)


def quantizers_of(model: nn.Module) -> list[Quantizer]:
    """Every quantizer in a model that is switched on."""
    found = [module for module in model.modules() if isinstance(module, Quantizer) and module.is_enable]
    names: dict[str, Quantizer] = {}
    for quantizer in found:
        if names.setdefault(quantizer.name, quantizer) is not quantizer:
            raise ExportError("two quantizers have the same name", got=repr(quantizer.name))
        if not quantizer.calibrated:
            raise ExportError(
                f"{quantizer.name!r} has no scale yet",
                hint="call calibrate(data) before exporting; quantized=False exports the float model",
            )
    return found


def tensor_label(name: str, call: int) -> str:
    """The name in the file for a quantizer's n-th call, counted from 0; most are called once."""
    return name if call == 0 else f"{name}@{call}"


def code_tensor(quantizer: Quantizer, x: Tensor) -> Tensor:
    """The quantized values that a quantizer stores for a tensor."""
    prepared = quantizer.prepare(x)
    return quantizer.grid(prepared).codes(prepared)


def unrounded_codes(quantizer: Quantizer, x: Tensor) -> Tensor:
    """The numbers of a tensor in units of its codes, before rounding, in float32."""
    prepared = quantizer.prepare(x).float()
    grid = quantizer.grid(prepared)
    return grid.positions(prepared) + grid.spread(prepared.shape)[1]


def _describe(quantizer: Quantizer, x: Tensor) -> Marked:
    prepared = quantizer.prepare(x)
    grid = quantizer.grid(prepared)
    scale, zero_point = (v.detach().float().cpu().reshape(-1) for v in (grid.scale, grid.zero_point))
    if not bool((torch.isfinite(scale) & (scale > 0)).all()):
        raise ExportError(
            f"a scale of {quantizer.name!r} is not a positive number",
            got=f"{float(scale.min())} .. {float(scale.max())}",
            hint="calibrate again, or check the training",
        )
    zero_point = zero_point.round().clamp(grid.code.low, grid.code.high)
    return Marked(
        name=quantizer.name,
        side=quantizer.side,
        bits=quantizer.bit,
        grid=replace(grid, scale=scale, zero_point=zero_point),
        shape=tuple(prepared.shape),
        dtype=prepared.dtype,
        scheme=str(quantizer.spec),
        codes=code_tensor(quantizer, x).detach().cpu() if quantizer.side == "W" else None,
    )


def mark_tensor(quantizer: Quantizer, x: Tensor) -> Tensor:
    """The operators that represent a quantizer in a traced graph: its preparation and a marker, or steps per token."""
    if quantizer.layout.kind == "token":
        return _snap_tokens(quantizer, quantizer.prepare(x))
    if quantizer.side == "W":
        return mark(x, quantizer.name)  # its codes are known, preparation included
    return mark(quantizer.prepare(x), quantizer.name)


def _snap_tokens(quantizer: Quantizer, x: Tensor) -> Tensor:
    """One scale per token, computed by operators that every runtime has; the numbers equal those of ``numerics``."""
    wide = x.float()
    grid = choose_grid(wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True), quantizer.code)
    return snap(wide, grid.scale, grid.zero_point, quantizer.code).to(x.dtype)
