"""The types of stored values: integers of 2 to 16 bits, 8-bit floats, or the 16 levels of NF4."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from sparsebit.errors import ConfigError

Dtype = Literal["int", "fp8_e4m3", "fp8_e5m2"]
Kind = Literal["int", "uint", "full", "fp8_e4m3", "fp8_e5m2", "nf4"]

FLOAT8: dict[str, torch.dtype] = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}

# Quantiles of a normal distribution, scaled to [-1, 1], with an exact zero (Dettmers et al., arXiv 2305.14314, app. E).
NF4_LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)


@dataclass(frozen=True)
class CodeType:
    """The type of the stored codes, and how a grid of this type is chosen for a range.

    - ``int``: two's complement; a grid chosen for a range has zero point 0 and scale absmax / high.
    - ``uint``: from 0 on; the zero point depends on the range.
    - ``full``: the codes of ``int``, with a signed scale: extreme / low, where extreme is the end of the range that is
      farther from zero. The lowest code is used, so 4 bits have 16 levels. Written ``int4_full``.
    - ``fp8_e4m3``, ``fp8_e5m2``: codes are 8-bit floats, scale absmax / largest finite value.
    - ``nf4``: codes are the indices of 16 uneven levels in [-1, 1], scale absmax.

    Example:
        >>> CodeType("int", 4).low, CodeType("int", 4).high, str(CodeType("full", 4))
        (-8, 7, 'int4_full')
        >>> CodeType.parse("uint8").dtype
        torch.uint8
    """

    kind: Kind = "int"
    bits: int = 8
    # The lowest multiple of the scale; for integers a code.
    low: int = field(init=False, repr=False, compare=False)
    high: int = field(init=False, repr=False, compare=False)
    dtype: torch.dtype = field(init=False, repr=False, compare=False)  # the smallest one that holds the codes

    def __post_init__(self) -> None:
        fixed = 8 if self.kind in FLOAT8 else 4 if self.kind == "nf4" else None
        if isinstance(self.bits, bool) or not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise ConfigError(
                "cannot make a grid of this width", expected="bits from 2 to 16", got=repr(self.bits)
            )
        if fixed is not None and self.bits != fixed:
            raise ConfigError(f"{self.kind} has {fixed} bits", got=repr(self.bits))
        low, high, dtype = _range_of(self.kind, self.bits)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)
        object.__setattr__(self, "dtype", dtype)

    @classmethod
    def of(cls, bits: int = 8, symmetric: bool = True, dtype: Dtype = "int") -> CodeType:
        """The type of a tensor's spec."""
        return cls(dtype, 8) if dtype != "int" else cls("int" if symmetric else "uint", bits)

    @classmethod
    def parse(cls, name: str) -> CodeType:
        """Parse the result of ``str``."""
        if name in FLOAT8 or name == "nf4":
            return cls(name, 4 if name == "nf4" else 8)  # type: ignore[arg-type]
        match = re.fullmatch(r"(u?int)(\d{1,2})(_full)?", name) if isinstance(name, str) else None
        if match is None or (match[1] == "uint" and match[3]):
            raise ConfigError(
                "unknown type of quantized values",
                expected="int2 to int16, uint2 to uint16, int2_full to int16_full, fp8_e4m3, fp8_e5m2 or nf4",
                got=repr(name),
            )
        return cls("full" if match[3] else "int" if match[1] == "int" else "uint", int(match[2]))

    def __str__(self) -> str:
        if self.kind == "full":
            return f"int{self.bits}_full"
        return f"{self.kind}{self.bits}" if self.is_integer else self.kind

    @property
    def is_integer(self) -> bool:
        """Whether codes are evenly spaced integers."""
        return self.kind in ("int", "uint", "full")

    @property
    def symmetric(self) -> bool:
        """Whether a grid chosen for a range has zero point 0."""
        return self.kind != "uint"

    # -- one element at a time, in multiples of the scale -------------------------------------------------------

    def round_(self, steps: Tensor) -> Tensor:
        """Round integers in place before clamping, half to even; other types are rounded only by ``nearest``."""
        return steps.round_() if self.is_integer else steps

    def rounded(self, steps: Tensor) -> Tensor:
        """The same in a new tensor."""
        return steps.round() if self.is_integer else steps.clone()

    def nearest(self, steps: Tensor) -> Tensor:
        """The nearest values of this type to clamped multiples of the scale; for integers they are unchanged."""
        return steps if self.is_integer else self.decode(self.encode(steps), steps.dtype)

    def encode(self, steps: Tensor) -> Tensor:
        """The codes of clamped multiples of the scale."""
        if self.kind != "nf4":
            return steps.to(self.dtype)
        levels = torch.tensor(NF4_LEVELS, dtype=steps.dtype, device=steps.device)
        return torch.bucketize(steps, (levels[1:] + levels[:-1]) / 2).to(torch.uint8)

    def decode(self, codes: Tensor, dtype: torch.dtype) -> Tensor:
        """The multiples of the scale that codes represent, including the zero point."""
        if self.kind != "nf4":
            return codes.to(dtype)
        return torch.tensor(NF4_LEVELS, dtype=dtype, device=codes.device)[codes.long()]


def _range_of(kind: Kind, bits: int) -> tuple[int, int, torch.dtype]:
    """Lowest and highest multiple of the scale, including the zero point, and the dtype of the codes."""
    if kind in FLOAT8:
        high = int(torch.finfo(FLOAT8[kind]).max)
        return -high, high, FLOAT8[kind]
    if kind == "nf4":
        return -1, 1, torch.uint8
    low, high = (0, 2**bits - 1) if kind == "uint" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    # torch has uint16, but hardly any operators for it.
    dtypes = (torch.uint8, torch.int8, torch.int16, torch.int32)
    return low, high, next(t for t in dtypes if torch.iinfo(t).min <= low and high <= torch.iinfo(t).max)
