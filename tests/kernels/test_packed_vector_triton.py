"""One vector and a packed weight: the kernel itself, on the CPU."""

from __future__ import annotations

from tests.kernels.interpreter import needs_triton, require_equal_to_reference


@needs_triton
def test_the_kernel_equals_its_reference() -> None:
    require_equal_to_reference("packed_vector")
