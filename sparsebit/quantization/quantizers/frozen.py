"""A weight stored as packed quantized values: a quantizer that needs no float weight."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from sparsebit.config import Options
from sparsebit.errors import SparsebitError
from sparsebit.numerics.grid import numbers_of, unpack_codes
from sparsebit.numerics.packed import PackedTensor
from sparsebit.quantization.quantizers.base import Quantizer
from sparsebit.quantization.quantizers.uniform import Uniform


class Frozen(Quantizer):
    """Returns the numbers of its quantized values and ignores its input; created by ``freeze_weights``.

    ``packed``, ``scale`` and ``zero_point`` are its state. A zero point that is 0 everywhere is stored once.
    """

    TYPE = "frozen"
    packed: Tensor

    def __init__(self, quantizer: Quantizer, weight: Tensor, *, pack: bool = True) -> None:
        """Store the quantized values of a weight, or with ``pack=False`` only its grid.

        One whose quantizer has no scale yet is filled by ``load_state_dict``.
        """
        spec = replace(quantizer.spec, quantizer="uniform", quantizer_options=Options())
        super().__init__(quantizer.name, quantizer.side, spec, quantizer.layout)
        self.shape, self.dtype = tuple(weight.shape), weight.dtype
        self.use_quant = True
        self.register_buffer("packed", torch.empty(0, dtype=torch.uint8, device=weight.device))
        self.zero_point = self.zero_point.to(self.code.dtype if self.code.is_integer else torch.int8)
        self.to(weight.device)
        if quantizer.calibrated:
            grid = quantizer.grid(weight).detach()
            if pack:
                self.packed = PackedTensor.of(quantizer.prepare(weight.detach()), grid).bits
            zero_point = grid.zero_point.to(self.zero_point.dtype)
            self.set_grid(grid.scale, zero_point if bool(zero_point.any()) else zero_point[:1])

    @property
    def held(self) -> PackedTensor:
        """The quantized values with their grid."""
        return PackedTensor(self.packed, self.grid(), self.shape, self.dtype)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scale and zero point of the grid, which does not change."""
        return self.scale, self.zero_point.expand_as(self.scale)

    def snap(self, x: Tensor) -> Tensor:
        """The numbers of the quantized values; ``x`` is ignored."""
        codes = unpack_codes(self.packed, self.code, math.prod(self.shape[1:])).reshape(self.shape)
        return numbers_of(codes, *self.scale_and_zero_point(), self.code, self.layout, self.dtype)

    def forward(self, x: Tensor, rectify: bool = False) -> Tensor:
        """The same, or an exporter's substitute; there is no ReLU before a weight."""
        numbers = self.snap(x)
        return numbers if self.substitute is None else self.substitute(self, numbers)

    def thawed(self) -> tuple[Quantizer, Tensor]:
        """A plain quantizer on the same grid, and the float weight that it does not change."""
        weight, quantizer = self.held.numbers(), Uniform(self.name, self.side, self.spec, self.layout)
        quantizer.to(weight.device)
        grid = self.grid()
        quantizer.set_grid(grid.scale, grid.zero_point.to(grid.scale.dtype))
        quantizer.use_quant = True
        if not torch.equal(quantizer.snap(weight), weight):
            raise SparsebitError(
                f"{self.name!r} cannot be converted back to {str(self.dtype).removeprefix('torch.')}",
                hint="convert the model to float32 before freeze()",
            )
        return quantizer, weight

    def disable_quant(self) -> None:
        """Refused, like everything that needs float weights."""
        self._refuse("switched to float")

    def reset(self) -> None:
        """Refused, like everything that needs float weights."""
        self._refuse("measured again")

    def observe_whole(self, x: Tensor) -> None:
        """Refused, like everything that needs float weights."""
        self._refuse("measured again")

    def _refuse(self, what: str) -> NoReturn:
        raise SparsebitError(
            f"{self.name!r} is frozen and cannot be {what}",
            expected="float weights, which freeze() replaced by quantized values",
            hint="call qmodel.thaw(), which turns the quantized values into floats, or load the float model again",
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Quantizer:
        """Move to another device with the model, and return numbers in the dtype that the model is converted to."""
        self.dtype = fn(torch.empty(0, dtype=self.dtype, device=self.packed.device)).dtype
        return super()._apply(fn, recurse)
