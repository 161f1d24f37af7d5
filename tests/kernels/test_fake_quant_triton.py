"""Fused fake-quantization: the kernels themselves, on the CPU."""

from __future__ import annotations

import pytest

from tests.kernels.interpreter import needs_triton, require_equal_to_reference


@needs_triton
@pytest.mark.parametrize("name", ["fake_quant", "clip"])
def test_kernels_equal_their_references(name: str) -> None:
    require_equal_to_reference(name)
