"""What is particular to ONNX Runtime."""

from __future__ import annotations

from sparsebit.targets.onnxruntime import CONVOLUTIONS, ONNXRUNTIME, TRANSPOSED


def test_convolutions_end_in_integers_and_transposed_ones_stay_in_float() -> None:
    assert all(ONNXRUNTIME.rules[op].output for op in CONVOLUTIONS)
    assert not any(op in ONNXRUNTIME.rules for op in TRANSPOSED)
    assert ONNXRUNTIME.kernels["ConvTranspose"] == frozenset()


def test_an_embedding_is_a_table_of_integers_whose_indices_are_not_quantized() -> None:
    rule = ONNXRUNTIME.rules["embedding"]
    assert rule.weight and not rule.inputs and not rule.output


def test_every_integer_kernel_is_one_of_its_own_or_runs_on_any_type() -> None:
    for op, kernels in ONNXRUNTIME.kernels.items():
        assert all(k.startswith(("Q", "MatMul", "Conv", "Dynamic")) or k == op for k in kernels), op
