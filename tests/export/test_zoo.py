"""A sample of the zoo in int8; ``benchmarks/onnx/zoo.py`` runs the whole of it."""

from __future__ import annotations

import warnings
from pathlib import Path

import onnx
import pytest
import torch

from sparsebit.export import check, export_graph
from sparsebit.quantization import QuantModel
from tests.zoo import ZOO

SAMPLE = (
    "cifar_resnet20",
    "mobilenet_v3",
    "unet",
    "lstm_classifier",
    "hf_distilbert",
    "nasty_tied_weights",
)


@pytest.mark.parametrize("name", [name for name in SAMPLE if name in ZOO])
def test_a_zoo_model_exports_and_agrees(name: str, tmp_path: Path) -> None:
    entry = ZOO[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = entry.make()
        args, kwargs = entry.inputs(2)
        qmodel = QuantModel(model, "int8_onnxruntime", example_inputs=args, example_kwargs=kwargs)
        qmodel.prepare_calibration()
        qmodel(*args, **kwargs)
        qmodel.calc_qparams()
        qmodel.set_quant(w_quant=True, a_quant=True)
        done = export_graph(qmodel.model, *entry.inputs(2), tmp_path / "net.onnx")
        onnx.checker.check_model(str(done.path), full_check=True)
        report = check(
            qmodel.model, done, [entry.inputs(2), entry.inputs(3)] if done.axes else [entry.inputs(2)]
        )
    assert report.ok, report.problems
    torch.testing.assert_close(torch.tensor(report.mismatch_share), torch.tensor(0.0), atol=1e-2, rtol=0)
