"""What calibration leaves behind, saved and taken back."""

from __future__ import annotations

import torch

from sparsebit.quantization.calibration.record import CalibrationRecord
from tests.quantization.nets import quantized


def test_shifts_are_taken_back_and_the_biases_returned() -> None:
    qmodel = quantized()
    bias = qmodel.model.fc.bias.detach().clone()
    record = CalibrationRecord(shifts={"fc.bias": torch.ones_like(bias)})
    before = record.take_back_shifts(qmodel.model)
    assert torch.equal(before["fc.bias"], bias) and not record.shifts
    torch.testing.assert_close(qmodel.model.fc.bias.detach(), bias - 1)
    record.shifts["fc.bias"] = torch.ones_like(bias)
    assert record.take_back_shifts(qmodel.model, keep_biases=True) == {} and not record.shifts
    torch.testing.assert_close(qmodel.model.fc.bias.detach(), bias - 1)


def test_the_state_round_trips() -> None:
    pair = (torch.zeros(3), torch.ones(3))
    record = CalibrationRecord(shifts={"a.bias": torch.ones(2)}, batch_norms={"conv": pair})
    loaded = CalibrationRecord()
    loaded.load_state(record.state(), torch.device("cpu"))
    assert torch.equal(loaded.shifts["a.bias"], torch.ones(2))
    assert all(torch.equal(a, b) for a, b in zip(loaded.batch_norms["conv"], pair, strict=True))
    loaded = CalibrationRecord()
    loaded.load_state({"mean/conv": torch.zeros(3)}, torch.device("cpu"))  # damaged: half a pair
    assert not loaded.batch_norms
