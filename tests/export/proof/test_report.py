"""What a check found, in sentences, tables and JSON."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sparsebit.export import CheckReport, ExportError, IntegerOp, OutputAgreement, TensorAgreement

GOOD = CheckReport(
    path=Path("net.onnx"),
    runtime="onnxruntime",
    tensors=(TensorAgreement(name="relu", side="A", elements=200, mismatched=1, largest=1),),
    outputs=(
        OutputAgreement(name="a", difference=0.1, relative=0.01, sqnr_db=30.0, samples=4, same_class=4),
        OutputAgreement(name="b", difference=0.2, relative=0.02, sqnr_db=20.0, samples=4),
    ),
    ops=(
        IntegerOp(name="conv", op="Conv", runs_as="QLinearConv", on_integers=True),
        IntegerOp(name="fc", op="Gemm", runs_as="Gemm", on_integers=False, why="its result is read in float"),
    ),
    float_ops={"HardSwish": 2, "Gemm": 1},
)


def test_the_worst_output_and_the_proof_are_sentences() -> None:
    assert GOOD.ok and GOOD.raise_for_mismatch() is GOOD
    assert (
        GOOD.end_to_end.startswith("output 'b': largest difference 0.2") and "on 4 samples" in GOOD.end_to_end
    )
    assert GOOD.piece_by_piece == (
        "every piece gives the same results as torch; 0.500% of the quantized values differ, by 1 at most"
    )
    assert GOOD.on_integers == "1 of 2 planned operators run on integers"
    assert GOOD.in_float == "2 HardSwish, 1 Gemm"
    weight = TensorAgreement(name="w", side="W", elements=9, mismatched=0, largest=0)
    half = replace(GOOD, ops=(), tensors=(*GOOD.tensors, weight))  # in float16 nothing is fused
    assert (
        half.on_integers
        == "no operator runs on integers, so the file is smaller than a float one, not faster"
    )
    assert replace(half, tensors=(weight,)).on_integers == ""  # only weights were asked for
    assert [op.name for op in GOOD.fallbacks] == ["fc"]


def test_it_prints_as_tables_and_is_json() -> None:
    text = str(GOOD)
    for words in (
        "net.onnx in onnxruntime",
        "end to end",
        "relu",
        "QLinearConv",
        "  in float: 2 HardSwish, 1 Gemm",
        "its result is read in float",
    ):
        assert words in text
    data = json.loads(json.dumps(GOOD.summary()))
    assert data["float_ops"] == {"HardSwish": 2, "Gemm": 1}
    assert data["ok"] and data["piece_by_piece"]["tensors"][0]["name"] == "relu"


def test_a_mismatch_is_an_error_that_says_where() -> None:
    bad = CheckReport(path=Path("net.onnx"), runtime="openvino", problems=("weight 'w': 3 numbers differ",))
    assert not bad.ok and "DIFFERS" in bad.piece_by_piece and bad.on_integers == ""
    with pytest.raises(ExportError, match=r"compute in openvino(.|\n)*weight 'w': 3 numbers differ"):
        bad.raise_for_mismatch()
    assert bad.end_to_end == "no outputs were compared"
