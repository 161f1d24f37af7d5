"""The settings of one tensor, after all defaults, presets and rules are applied."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from sparsebit.config.engine.options import Options, Scalar
from sparsebit.errors import ConfigError
from sparsebit.targets.schemes import NumberFormat

Granularity = Literal["tensor", "channel", "group", "token"]
Layout = Literal["NCHW", "NLC"]
LOWEST_BITS, HIGHEST_BITS = 2, 16


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """How to quantize one tensor. Specs can be compared and counted.

    Each field is checked on its own. ``conflicts`` decides which of them can be combined, and
    knows the side and the backend.

    Example:
        >>> print(TensorSpec(bits=4, granularity="group", group_size=128, observer="mse"))
        int4 per-group-symmetric of 128, uniform, mse
        >>> print(TensorSpec(enabled=False))
        float
    """

    enabled: bool = True
    bits: int = 8
    dtype: NumberFormat = "int"
    symmetric: bool = True  # symmetric: signed codes, zero point 0; affine: codes 0 .. 2**bits - 1
    granularity: Granularity = "tensor"
    group_size: int | None = None  # for "group": along the input channels of a weight
    quantizer: str = "uniform"
    quantizer_options: Mapping[str, Scalar] = field(default_factory=Options)
    observer: str = "minmax"
    observer_options: Mapping[str, Scalar] = field(default_factory=Options)
    layout: Layout = "NCHW"  # activations: channels on axis 1, or on the last one

    def __post_init__(self) -> None:
        for name, choices in (
            ("dtype", get_args(NumberFormat)),
            ("granularity", get_args(Granularity)),
            ("layout", get_args(Layout)),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise ConfigError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
        if type(self.bits) is not int or not LOWEST_BITS <= self.bits <= HIGHEST_BITS:
            raise ConfigError(
                f"bits: expected an integer from {LOWEST_BITS} to {HIGHEST_BITS}, got {self.bits!r}"
            )
        if self.dtype != "int" and self.bits != 8:
            raise ConfigError(f"bits: {self.dtype} has 8 bits, got {self.bits}")
        if (self.granularity == "group") != (self.group_size is not None):
            raise ConfigError(
                f"group_size: expected a size with granularity 'group' and None without, "
                f"got {self.group_size!r} with {self.granularity!r}"
            )
        object.__setattr__(self, "quantizer_options", Options(self.quantizer_options))
        object.__setattr__(self, "observer_options", Options(self.observer_options))

    @property
    def scheme(self) -> str:
        """The name that ``QSCHEME`` gives to granularity and symmetry together."""
        return f"per-{self.granularity}-{'symmetric' if self.symmetric else 'affine'}"

    @property
    def codes(self) -> str:
        """The type of the stored numbers: ``int8``, ``uint4``, ``fp8_e4m3``, or ``float`` when not quantized."""
        if not self.enabled:
            return "float"
        return self.dtype if self.dtype != "int" else f"{'int' if self.symmetric else 'uint'}{self.bits}"

    def __str__(self) -> str:
        if not self.enabled:
            return "float"
        scheme = f"{self.scheme} of {self.group_size}" if self.group_size else self.scheme
        parts = [f"{self.codes} {scheme}"]
        for name, options in (
            (self.quantizer, self.quantizer_options),
            (self.observer, self.observer_options),
        ):
            settings = ", ".join(f"{key}={value}" for key, value in options.items())
            parts.append(f"{name}({settings})" if settings else name)
        return ", ".join(parts)
