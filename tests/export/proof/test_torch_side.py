"""What the torch model computes, kept by the names that the file has."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sparsebit.export.proof.torch_side import run_torch
from tests.export.nets import config, quantized


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.relu(self.fc(x)))


def test_weights_quantized_values_and_outputs_are_those_of_the_model() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    qmodel = quantized(Twice(), x)
    qmodel.set_quant(w_quant=False, a_quant=False)
    run = run_torch(qmodel.model, (x,))
    quantizers = qmodel.quantizers
    assert torch.equal(run.weights["fc.weight"], quantizers["fc.weight"].snap(qmodel.weights()["fc.weight"]))
    assert set(run.codes) == set(run.unrounded) == {q.name for q in quantizers.values() if q.side == "A"}
    for name, codes in run.codes.items():
        code = quantizers[name].code
        rounded = run.unrounded[name].round().clamp(code.low, code.high)
        assert torch.equal(codes.float(), rounded)
    with qmodel.quantized():
        assert torch.equal(run.outputs[0], qmodel(x))
    assert not any(q.use_quant for q in quantizers.values())


def test_8_bit_floats_are_kept_as_numbers_and_float_models_without_any() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    sides = {"scheme": "per-tensor-symmetric", "dtype": "fp8_e4m3"}
    qmodel = quantized(nn.Sequential(nn.Linear(4, 2)), x, config(sides, sides) | {"BACKEND": "virtual"})
    run = run_torch(qmodel.model, (x,))
    assert set(run.snapped) == set(run.codes) and not run.unrounded
    plain = run_torch(qmodel.model, (x,), quantized=False)
    assert not plain.codes and not plain.weights
