from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sparsebit.compat import operators
from sparsebit.compat.names import OPERATORS, OldNameError
from sparsebit.compat.operators import QuantOpr, SConv2d, SLinear, SparseOpr
from sparsebit.quantization import QuantModel
from sparsebit.quantization.modules.qmodules import register_qmodule, unregister_qmodule
from sparsebit.sparse import SparseModel

CONFIG = {
    "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"BIT": 8}},
    "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"BIT": 8}, "QADD": {"ENABLE_QUANT": True}},
}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.fc((y + torch.sigmoid(y)).mean((2, 3)))


def test_every_old_class_is_there() -> None:
    assert all(isinstance(getattr(operators, name), type) for names in OPERATORS.values() for name in names)


def test_loops_over_modules_find_what_they_meant() -> None:
    qmodel = QuantModel(Net().eval(), CONFIG)
    found = {name: type(m).__name__ for name, m in qmodel.model.named_modules() if isinstance(m, QuantOpr)}
    assert found == {"conv": "QConv2d", "fc": "QLinear"}
    kinds = {kind: getattr(operators, kind) for kind in ("QConv2d", "QLinear", "QAdd", "QIdentity", "MatMul")}
    assert isinstance(qmodel.model.conv, kinds["QConv2d"])
    assert not isinstance(qmodel.model.conv, kinds["QLinear"])
    assert isinstance(qmodel.model.add, kinds["QAdd"])
    assert isinstance(qmodel.model.add, operators.MultipleInputsQuantOpr)
    assert not isinstance(qmodel.model.add, kinds["MatMul"])
    assert isinstance(nn.Identity(), kinds["QIdentity"])
    assert not isinstance(nn.Conv2d(1, 1, 1), kinds["QConv2d"])


def test_an_operator_written_for_the_old_toolkit_still_replaces_its_source() -> None:
    @register_qmodule(sources=[nn.Linear])
    class OldLinear(QuantOpr):
        def __init__(self, org_module: nn.Linear, config: object = None) -> None:
            super().__init__()
            self.weight, self.bias = org_module.weight, org_module.bias

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(
                self.input_quantizer(x), self.weight_quantizer(self.weight), self.bias
            )

    try:
        qmodel = QuantModel(Net().eval(), CONFIG)
        assert isinstance(qmodel.model.fc, OldLinear)
        assert isinstance(qmodel.model.fc, QuantOpr)
    finally:
        unregister_qmodule(OldLinear)


def test_classes_that_stand_for_operators_cannot_be_built() -> None:
    with pytest.raises(OldNameError, match=r"QConv2d cannot be constructed.*\n.*register_qmodule"):
        operators.QConv2d(nn.Conv2d(1, 1, 1))
    with pytest.raises(OldNameError, match=r"SConv2d cannot be constructed.*\n.*register_op"):
        SConv2d(nn.Conv2d(1, 1, 1))


def test_layers_that_can_be_pruned_are_found() -> None:
    sconfig = {"SPARSER": {"TYPE": "unstructured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    smodel = SparseModel(Net().eval(), sconfig, example_inputs=(torch.randn(1, 3, 8, 8),))
    layers = [m for m in smodel.model.modules() if isinstance(m, SparseOpr)]
    assert [isinstance(m, SConv2d) for m in layers] == [True, False]
    assert [isinstance(m, SLinear) for m in layers] == [False, True]
    assert not isinstance(nn.Conv2d(1, 1, 1), SConv2d)
