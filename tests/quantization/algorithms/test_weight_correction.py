"""Weight-norm correction: the codes stay, the norms come back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit.quantization import QuantModel
from sparsebit.quantization.algorithms import WeightCorrection
from sparsebit.quantization.algorithms.weight_correction import norm_ratio
from tests.quantization.algorithms.jobs import is_same, open_job, snapshot
from tests.quantization.nets import config, images, residual


def test_the_ratio_of_norms_around_the_mean() -> None:
    exact, rounded = torch.randn(4, 50), torch.randn(4, 50)
    torch.testing.assert_close(norm_ratio(exact, rounded), exact.std(1) / rounded.std(1))
    assert norm_ratio(exact[:1], torch.ones(1, 50)).item() == 1


@pytest.mark.parametrize("scheme", ["per-channel-symmetric", "per-channel-affine"])
def test_norms_come_back_and_codes_stay(scheme: str, tmp_path: Path) -> None:
    net = residual()
    before = snapshot(net)
    settings = {"W__QUANTIZER": {"BIT": 3}, "W__QSCHEME": scheme}
    qmodel, job = open_job(net, images(), calibrated=True, **settings)
    exact, codes = {}, {}
    for name, quantizer, weight in job.weights():
        exact[name] = weight.detach().clone()
        codes[name] = quantizer.grid().codes(weight.detach())
    WeightCorrection().apply(job)
    for name, quantizer, weight in job.weights():
        assert torch.equal(quantizer.grid().codes(weight.detach()), codes[name])
        with torch.no_grad():
            rounded = quantizer.snap(weight)
        torch.testing.assert_close(rounded.flatten(1).std(1), exact[name].flatten(1).std(1))
    assert job.notes == ["corrected the norm of 3 weights"] and is_same(net, before)
    qmodel.set_quant(w_quant=True, a_quant=True)
    qmodel.save(tmp_path / "it")
    assert torch.equal(QuantModel.load(tmp_path / "it", residual(1))(images()), qmodel(images()))


def test_one_scale_for_the_tensor_is_left_alone() -> None:
    qmodel, job = open_job(residual(), images(), calibrated=True, W__QSCHEME="per-tensor-symmetric")
    before = snapshot(qmodel.model)
    WeightCorrection().apply(job)
    assert is_same(qmodel.model, before)


def test_from_the_config() -> None:
    qmodel = QuantModel(
        residual(), config(SCHEDULE={"FUSE_BN": True, "RECOVERY": ["weight_correction"]}), images()
    )
    qmodel.calibrate([images()], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    assert qmodel(images()).isfinite().all()
