"""Every registered quantizer, at every width, before and after training: the file computes what the model computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit.export import export_onnx
from sparsebit.quantization import QUANTIZERS, QuantModel
from tests.export.nets import Tokens
from tests.quantization.nets import config, images, residual
from tests.quantization.training.test_training import KINDS, run, sgd

BITS = (2, 3, 4, 8)


def test_every_registered_quantizer_is_here() -> None:
    assert {name for pair in KINDS.values() for name in pair} >= set(QUANTIZERS)


def settings(kind: str, bits: int, backend: str) -> dict[str, object]:
    weight, activation = KINDS[kind]
    steps = [{"adaround": {"steps": 2}}] if kind == "adaround" else []
    return config(
        backend,
        SCHEDULE={"FUSE_BN": True, "RECOVERY": steps},
        W__QUANTIZER={"BIT": bits, "TYPE": weight},
        A__QUANTIZER={"BIT": bits, "TYPE": activation},
    )


@pytest.mark.parametrize("trained", [False, True], ids=["calibrated", "trained"])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_convolutions(kind: str, bits: int, trained: bool, tmp_path: Path) -> None:
    qmodel = QuantModel(residual(), settings(kind, bits, "onnxruntime"), images())
    qmodel.calibrate([images(8)], progress=False)
    if trained:
        qmodel.init_QAT()
        qmodel.train()
        run(qmodel, sgd(qmodel), 0, 3)
        qmodel.eval()
    else:
        qmodel.set_quant(w_quant=True, a_quant=True)
    done = export_onnx(qmodel, images(4, seed=5), tmp_path / "net.onnx")  # raises where they differ
    assert done.report is not None and {t.name for t in done.report.tensors} == set(qmodel.quantizers)
    assert done.report.outputs[0].piece_error < 1e-3 and max(t.largest for t in done.report.tensors) <= 1
    assert not any(t.unexplained for t in done.report.tensors), done.report


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_linear_layers_are_exact(kind: str, bits: int, tmp_path: Path) -> None:
    """Their biases are added in float wherever rounding them would show."""
    torch.manual_seed(0)
    x = torch.randn(4, 5, 32)
    qmodel = QuantModel(Tokens().eval(), settings(kind, bits, "onnxruntime"), x)
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    done = export_onnx(qmodel, torch.randn(4, 5, 32), tmp_path / "net.onnx")
    assert done.report is not None and not done.report.fallbacks
    assert sum(t.mismatched for t in done.report.tensors) <= 1 and done.report.outputs[0].piece_error < 1e-5
