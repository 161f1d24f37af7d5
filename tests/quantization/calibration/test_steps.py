"""The steps of calibration, one by one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel
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
