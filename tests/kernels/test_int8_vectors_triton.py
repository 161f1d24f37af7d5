"""Vectors in int8: the kernels themselves, on the CPU."""

from __future__ import annotations

from tests.kernels.interpreter import needs_triton, require_equal_to_reference


@needs_triton
def test_kernels_equal_their_references() -> None:
    require_equal_to_reference("int8_vectors")
