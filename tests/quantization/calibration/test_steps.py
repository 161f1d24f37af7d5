"""The steps of calibration, one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.quantization import Quantizer, QuantModel
from sparsebit.quantization.calibration.steps import finish_round, require_asym, require_measured, run_loader
from tests.quantization.nets import config, images, residual
from tests.storage.processes import held_by_another


def test_the_steps_are_those_of_calibrate() -> None:
    whole, steps = (QuantModel(residual(), config(), images()) for _ in range(2))
    whole.calibrate([images()], progress=False)
    steps.prepare_calibration()
    run_loader(steps, [images()], None, None, False)
    finish_round(steps, shown=False)
    assert steps.calibration is None
    for name, quantizer in whole.quantizers.items():
        assert torch.equal(quantizer.scale, steps.quantizers[name].scale), name


def test_what_is_missing_is_said() -> None:
    with pytest.raises(SparsebitError, match=r"before prepare_calibration\(\)"):
        require_measured(None)
    qmodel = QuantModel(residual(), config(), images())
    qmodel.prepare_calibration()
    with pytest.raises(SparsebitError, match="no calibration data"):
        require_measured(qmodel.calibration)
    with pytest.raises(SparsebitError, match="asym=True"):
        require_asym(False, True, False)


def test_a_second_recovery_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    settings = {"SCHEDULE": {"RECOVERY": [{"adaround": {"steps": 1}}]}}
    qmodel = QuantModel(residual(), config(**settings), images())
    with held_by_another(tmp_path), pytest.raises(SparsebitError, match="another run is working in"):
        qmodel.calibrate([images()], folder=tmp_path, progress=False)
    assert list(tmp_path.iterdir()) == []
    qmodel = QuantModel(residual(), config(), images())
    qmodel.calibrate([images()], folder=tmp_path / "unused", progress=False)
    assert not (tmp_path / "unused").exists(), "no step keeps anything"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda scale: None, "the quantizer 'uniform' set no grid for"),
        (lambda scale: (scale * torch.nan, torch.zeros_like(scale)), "finite scales above 0"),
        (lambda scale: (-scale, torch.zeros_like(scale)), "finite scales above 0"),
        (lambda scale: (scale, scale / 0), "whole zero points from"),
        (lambda scale: (scale, torch.full_like(scale, 0.5)), "whole zero points from"),
        (lambda scale: (scale, torch.full_like(scale, 500)), "whole zero points from"),
        (lambda scale: (scale[0], torch.zeros(())), "a grid of another shape"),
        (lambda scale: (scale, torch.zeros(())), "a zero point for each scale"),
        (lambda scale: (scale, torch.zeros_like(scale).long()), "scales and zero points in float32"),
    ],
)
@pytest.mark.parametrize("side", ["W", "A"])
def test_a_grid_that_cannot_be_used_is_refused_and_the_earlier_one_stays(
    monkeypatch: pytest.MonkeyPatch, wrong: Any, told: str, side: str
) -> None:
    qmodel = QuantModel(residual(), config(), images())
    qmodel.calibrate([images()], progress=False)
    before = qmodel(images())

    def set_range(self: Quantizer, lo: Tensor, hi: Tensor, x: Tensor | None) -> None:
        if self.side != side:
            return original(self, lo, hi, x)
        if (grid := wrong((hi - lo) / 255)) is not None:
            self.set_grid(*grid)
        else:
            self.set_grid(torch.empty(0), torch.empty(0))

    original = Quantizer.set_range
    monkeypatch.setattr(Quantizer, "set_range", set_range)
    with pytest.raises(SparsebitError, match=told):
        qmodel.calibrate([images(seed=4)], progress=False)
    assert torch.equal(qmodel(images()), before)
