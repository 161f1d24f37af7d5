"""What is particular to TensorRT."""

from __future__ import annotations

from sparsebit.targets.tensorrt import TENSORRT


def test_every_scheme_is_symmetric() -> None:
    rows = [row for accepts in TENSORRT.accepts.values() for row in accepts.rows]
    assert all(scheme.endswith("-symmetric") for row in rows for scheme in row.schemes)


def test_its_files_have_forms_of_their_own_and_no_runtime_here() -> None:
    assert TENSORRT.forms == "tensorrt" and TENSORRT.runtime is None and not TENSORRT.kernels


def test_an_addition_is_computed_inside_the_layer_before_it() -> None:
    assert {"conv2d", "linear"} <= TENSORRT.rules["add"].inside
