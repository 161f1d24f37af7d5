from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.compat.checkpoint import convert_checkpoint
from sparsebit.errors import SparsebitError
from sparsebit.quantization import QuantModel

CONFIG = {
    "SCHEDULE": {"FUSE_BN": True},
    "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": "lsq", "BIT": 4}},
    "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": "lsq", "BIT": 4}},
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.layer = nn.Sequential(nn.Conv2d(4, 4, 1))
        self.other = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        return self.layer(y) - self.other(y)


def calibrated() -> QuantModel:
    torch.manual_seed(0)
    qmodel = QuantModel(Net().eval(), CONFIG)
    qmodel.calibrate([torch.randn(8, 3, 6, 6)], progress=False)
    return qmodel


def old_state() -> dict[str, Tensor]:
    """As the old toolkit saved it: flat names, a quantizer for each reader, scales with the rank of their tensor."""
    state: dict[str, Tensor] = {}
    for name, shape in (("conv1_bn", (4, 3, 3, 3)), ("layer_0", (4, 4, 1, 1)), ("other", (4, 4, 1, 1))):
        state |= {
            f"model.{name}.weight": torch.randn(shape),
            f"model.{name}.bias": torch.randn(4),
            f"model.{name}.weight_quantizer.scale": torch.rand(4, 1, 1, 1) + 0.1,
            f"model.{name}.weight_quantizer.zero_point": torch.zeros(4, 1, 1, 1),
            f"model.{name}.input_quantizer.scale": torch.full((1,), 0.25),
            f"model.{name}.input_quantizer.zero_point": torch.zeros(1),
        }
    state |= {
        "model.relu.input_quantizer.scale": torch.ones(1),
        "model.relu.input_quantizer.zero_point": torch.zeros(1),
    }
    return state


def test_weights_and_grids_arrive_where_they_belong() -> None:
    qmodel, old = calibrated(), old_state()
    checkpoint = {"epoch": 3, "state_dict": {f"module.{key}": value for key, value in old.items()}}
    qmodel.load_state_dict(convert_checkpoint(checkpoint, qmodel))
    conv = qmodel.model.get_submodule("layer.0")
    assert torch.equal(conv.weight, old["model.layer_0.weight"])
    assert torch.equal(conv.weight_quantizer.scale, old["model.layer_0.weight_quantizer.scale"].flatten())
    assert torch.equal(qmodel.model.conv1.bias, old["model.conv1_bn.bias"])
    quantizer = qmodel.model.conv1.input_quantizer
    assert quantizer.scale.tolist() == [0.25]
    x = torch.randn(8, 3, 6, 6)
    weight = qmodel.model.conv1.weight_quantizer
    steps = (old["model.conv1_bn.weight"] / weight.scale.view(-1, 1, 1, 1)).round().clamp(-8, 7)
    torch.testing.assert_close(weight.snap(qmodel.model.conv1.weight), steps * weight.scale.view(-1, 1, 1, 1))
    # The input has negative values: the old grid was signed, -8 to 7 steps around zero.
    torch.testing.assert_close(quantizer.snap(x), (x / 0.25).round().clamp(-8, 7) * 0.25)


def test_readers_that_disagree_are_named() -> None:
    qmodel, old = calibrated(), old_state()
    old["model.other.input_quantizer.scale"] = torch.full((1,), 0.5)
    with pytest.warns(UserWarning, match=r"1 tensors have one scale for each reader.*such as 'relu'"):
        converted = convert_checkpoint(old, qmodel)
    assert converted["model.quantizers.relu_.scale"].tolist() == [0.25]


def test_what_only_one_side_quantizes_is_named() -> None:
    qmodel, old = calibrated(), old_state()
    before = qmodel.model.conv1.input_quantizer.scale.clone()
    del old["model.conv1_bn.input_quantizer.scale"]
    old |= {"model.sub.input_quantizer.scale": torch.full((1,), 3.0)}
    with pytest.warns(UserWarning) as said:
        converted = convert_checkpoint(old, qmodel)
    text = "\n".join(str(warning.message) for warning in said)
    assert "have no quantizer in the checkpoint and keep the calibrated range, such as 'x'" in text
    assert "1 scales in the checkpoint are of tensors that are not quantized here" in text
    assert torch.equal(converted["model.quantizers.x_.scale"], before)


def test_refusals_say_what_is_missing() -> None:
    with pytest.raises(SparsebitError, match=r"calibrate the model before.*\n.*\n.*qmodel\.calibrate"):
        convert_checkpoint(old_state(), QuantModel(Net().eval(), CONFIG))
    qmodel, old = calibrated(), old_state()
    old["model.other.weight"] = torch.randn(2, 2)
    with pytest.raises(SparsebitError, match=r"another shape\n  where:    'other\.weight'"):
        convert_checkpoint(old, qmodel)
    del old["model.other.weight"]
    with pytest.raises(SparsebitError, match="lacks weights"):
        convert_checkpoint(old, qmodel)
