from __future__ import annotations

import pytest

from sparsebit.compat.common import Backend, QuantTarget, check_torch_version, get_backend
from sparsebit.errors import RegistryError


def test_backends_are_the_names_that_configs_use() -> None:
    assert get_backend("onnxruntime") is Backend.ONNXRUNTIME
    assert {QuantTarget.WEIGHT.value, QuantTarget.FEATURE.value} == {"W", "A"}
    with pytest.raises(RegistryError, match="did you mean 'tensorrt'"):
        get_backend("tensort")


def test_versions_compare_as_numbers() -> None:
    assert check_torch_version("1.10.0")
    assert not check_torch_version("99.0")
