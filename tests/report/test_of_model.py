"""From a quantized model to the content of a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sparsebit.config import load_sconfig
from sparsebit.errors import SparsebitError
from sparsebit.export import CheckReport, IntegerOp
from sparsebit.report import collect
from sparsebit.report.of_model import made_with
from sparsebit.sparse import SparseReport
from tests.report.samples import batches, quantized, sample


def test_every_layer_has_its_errors_and_the_pictures_of_its_tensors() -> None:
    report = sample()
    assert [layer.name for layer in report.layers] == ["stem", "mix", "mean", "head"]
    stem = report.layers[0]
    assert stem.weight_bits == stem.input_bits == 8 and stem.sqnr == stem.sqnr_alone
    assert [shown.name for shown in stem.histograms] == ["stem.weight", "images"]
    assert report.layers[1].weight_bits == 4 and report.layers[2].weight_bits is None
    assert [measure.name for measure in report.measures] == ["accuracy", "size", "latency"]


@pytest.mark.parametrize("wrong", [{"accuracy": 0.9}, {"size": ("1 MB", "2 MB")}, {"latency": (1, 2, 3)}])
def test_numbers_come_in_pairs(wrong: Any) -> None:
    with pytest.raises(SparsebitError, match=f"{next(iter(wrong))} is not a pair of numbers"):
        collect(quantized(), batches()[:1], **wrong)


def test_pruning_the_check_and_configs_are_on_the_page() -> None:
    op = IntegerOp(name="head", op="Gemm", runs_as="Gemm", on_integers=False, why="its bias is in float")
    report = collect(
        quantized(),
        batches()[:1],
        accuracy=(12.0, 11.5),
        pruning=SparseReport(kind="structured", rows=(), params_before=2000, params_after=1000),
        pruning_config=load_sconfig({"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}),
        check=CheckReport(
            path=Path("a.onnx"), runtime="onnxruntime", ops=(op,), float_ops={"HardSigmoid": 3}
        ),
        latency=(0.001, 0.002),
        batches=1,
        progress=False,
    )
    metric, size, _ = report.measures
    slower = report.notes[0]
    assert slower.startswith(
        "It is slower than the float model. A usual cause (3 HardSigmoid): each operator in"
    )
    assert "preset int8_openvino" in slower and "docs/troubleshooting.md" in slower
    # Not a share; before pruning.
    assert (metric.name, metric.unit, size.before) == ("metric", "number", 8000)
    assert (
        "head",
        "planned on integers, runs in float in onnxruntime: its bias is in float",
    ) in report.in_float
    assert [title for title, _ in report.configs] == ["pruning.yaml", "quantization.yaml"]
    assert any(note.startswith("Pruning: 2,000 parameters, 1,000 left") for note in report.notes)
    assert dict(made_with()).keys() == {"torch", "Python", "machine"}
