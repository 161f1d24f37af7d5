"""The arithmetic of quantization, on torch alone: what is stored (``CodeType``), which elements share a scale
(``Layout``), and the grid of both (``Grid``) with its verbs ``codes``, ``numbers``, ``snap``, ``pack``, ``unpack``."""

from sparsebit.numerics.code_type import CodeType
from sparsebit.numerics.grid import Grid, choose_grid
from sparsebit.numerics.layout import Layout

__all__ = ["CodeType", "Grid", "Layout", "choose_grid"]
