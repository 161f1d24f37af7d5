"""What was trained or recovered is what the exported file computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sparsebit.quantization import QuantModel
from tests.quantization.algorithms.jobs import Plain, unequal
from tests.quantization.nets import config, images, residual
from tests.quantization.training.test_training import KINDS, run, sgd, training

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
from sparsebit.export import export_onnx

X = images(4, seed=5)


def check(qmodel: QuantModel, path: Path) -> None:
    done = export_onnx(qmodel.eval(), X, path)  # raises where the file computes something else
    assert done.report is not None and done.report.ok, str(done)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_after_training(kind: str, bits: int, tmp_path: Path) -> None:
    qmodel = training(kind, bits=bits)
    run(qmodel, sgd(qmodel), 0, 2)
    check(qmodel, tmp_path / "trained.onnx")


@pytest.mark.parametrize("backend", ["virtual", "onnxruntime"])
@pytest.mark.parametrize("batch_norm", ["leave", "freeze", "fold"])
def test_no_batch_norm_is_left_in_the_file(batch_norm: Any, backend: str, tmp_path: Path) -> None:
    import onnx

    learned = {"TYPE": "lsq", "BIT": 8}
    settings = config(backend, SCHEDULE={}, W__QUANTIZER=learned, A__QUANTIZER=learned)
    qmodel = QuantModel(residual(), settings, X)
    qmodel.calibrate([X], progress=False)
    qmodel.init_QAT(batch_norm=batch_norm)
    qmodel.train()
    run(qmodel, sgd(qmodel), 0, 2)
    check(qmodel, tmp_path / "trained.onnx")
    nodes = [node.op_type for node in onnx.load(tmp_path / "trained.onnx").graph.node]
    assert "Conv" in nodes and "BatchNormalization" not in nodes


@pytest.mark.parametrize(
    "steps",
    [
        ["equalization"],
        ["bias_correction"],
        ["weight_correction"],
        ["smoothquant"],
        [{"adaround": {"steps": 5}}],
        ["equalization", {"brecq": {"steps": 5}}, "bias_correction"],
    ],
    ids=str,
)
@pytest.mark.parametrize("net", ["residual", "relu6"])
def test_after_recovery(steps: list[Any], net: str, tmp_path: Path) -> None:
    model: nn.Module = residual() if net == "residual" else unequal(Plain(nn.ReLU6())).eval()
    made = config("onnxruntime", SCHEDULE={"FUSE_BN": True, "RECOVERY": steps})
    qmodel = QuantModel(model, made, X)
    qmodel.calibrate([X], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    check(qmodel, tmp_path / "recovered.onnx")
    torch.testing.assert_close(qmodel(X), model(X), rtol=0, atol=0.1 * model(X).abs().max().item())
