"""Operators with quantizers: the library's own leaves, and those of a user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import Node

from sparsebit.errors import PlugInError, RegistryError, SparsebitError
from sparsebit.graph.ops import OPS
from sparsebit.quantization import QuantModel, QuantOpr, register_qmodule
from sparsebit.quantization.modules.qmodules import QMODULES, quantized_leaf, unregister_qmodule
from tests.quantization.nets import CONFIGS, config, images, quantized, residual

LEAVES: dict[str, tuple[nn.Module, Tensor]] = {
    "conv1d": (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2), torch.randn(2, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), torch.randn(2, 4, 6, 6)),
    "conv3d": (nn.Conv3d(2, 4, 3, padding="same", bias=False), torch.randn(2, 2, 4, 4, 4)),
    "conv_transpose1d": (nn.ConvTranspose1d(4, 6, 3, stride=2, output_padding=1), torch.randn(2, 4, 5)),
    "conv_transpose2d": (nn.ConvTranspose2d(4, 6, 3, groups=2), torch.randn(2, 4, 5, 5)),
    "conv_transpose3d": (nn.ConvTranspose3d(2, 4, 2, bias=False), torch.randn(2, 2, 3, 3, 3)),
    "linear": (nn.Linear(4, 6), torch.randn(2, 3, 4)),
    "embedding": (nn.Embedding(9, 4, padding_idx=0), torch.randint(9, (2, 5))),
}


@pytest.mark.parametrize("op", [name for name, spec in OPS.items() if spec.with_weight])
def test_a_leaf_computes_with_the_quantized_weight(op: str) -> None:
    module, x = LEAVES[op]
    qmodel = quantized(module.eval(), None, x, on=False)
    torch.testing.assert_close(qmodel(x), module(x))
    (weight,) = qmodel.plan.weights()
    channels = module(x).shape[1] if op.startswith("conv") else len(module.weight)  # type: ignore[arg-type]
    assert qmodel.quantizers[weight.name].scale.numel() == channels, "one scale for each output channel"
    qmodel.set_quant(w_quant=True)
    got, before = qmodel(x), module.weight
    module.weight = nn.Parameter(qmodel.quantizers[weight.name].snap(before.detach()))  # type: ignore[operator]
    try:
        assert torch.equal(got, module(x)) and not torch.equal(module.weight, before)  # type: ignore[arg-type]
    finally:
        module.weight = before


def test_padding_mode_and_other_settings_survive() -> None:
    """What the first Sparsebit lost without a word."""
    cases: list[tuple[nn.Module, Tensor]] = [
        (nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), images()),
        (nn.AvgPool2d(3, padding=1, count_include_pad=False), images()),
        (nn.AvgPool2d(2, divisor_override=3), images()),
        (nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), images()),
        (nn.Upsample(size=(5, 7)), images()),
        (nn.GELU(approximate="tanh"), images()),
        (nn.Softmax(dim=1), images()),
        (nn.Hardswish(), images()),
        (nn.PReLU(3), images()),
        (nn.GroupNorm(3, 3), images()),
    ]
    for module, x in cases:
        qmodel = QuantModel(module.eval(), config(), x)
        assert torch.equal(qmodel(x), module(x)), module
        str(qmodel), str(qmodel.model)


def test_functional_forms_are_quantized_as_their_modules_are() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel, self.matrix = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Parameter(torch.randn(5, 4))

        def forward(self, x: Tensor) -> Tensor:
            x = F.leaky_relu(F.conv2d(x, self.kernel), 0.2)
            return F.linear(x.mean((2, 3)), self.matrix)

    net = Functional().eval()
    qmodel = quantized(net)
    assert {w.name for w in qmodel.plan.weights()} == {"kernel", "matrix"}
    assert (qmodel(images()) - net(images())).norm() < 0.05 * net(images()).norm()
    assert qmodel.model.conv2d.weight_quantizer is qmodel.quantizers["kernel"]


def test_a_shared_weight_has_one_quantizer() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.head = nn.Embedding(12, 4), nn.Linear(4, 12, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Tensor) -> Tensor:
            y: Tensor = self.head(torch.exp(self.words(ids)))
            return y

    qmodel = quantized(Tied().eval(), None, torch.randint(12, (2, 5)))
    (weight,) = qmodel.plan.weights()
    assert weight.readers == ("words", "head")
    assert qmodel.model.words.weight_quantizer is qmodel.model.head.weight_quantizer
    assert len(list(qmodel.parameters())) == 1


def test_one_module_with_two_wishes_gets_the_wider_one() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.last(self.fc(torch.exp(self.fc(x))))
            return y

    settings = config(W__QUANTIZER__BIT=4, FIRST_LAST=8)
    qmodel = quantized(Twice().eval(), settings, torch.randn(2, 4))
    assert {w.name: (w.spec.bits, w.readers) for w in qmodel.plan.weights()} == {
        "fc.weight": (8, ("fc", "fc_1")),
        "last.weight": (8, ("last",)),
    }
    assert any("fc.weight has one quantizer" in note for note in qmodel.plan.notes)
    assert set(qmodel.quantizers) == {tensor.name for tensor in qmodel.plan.tensors}


def test_a_leaf_that_cannot_take_a_weight_is_refused() -> None:
    quantizer = quantized().quantizers["fc.weight"]
    with pytest.raises(SparsebitError, match="ReLU cannot be run with a quantized weight"):
        quantized_leaf(nn.ReLU(), "relu", quantizer)


# -- a user's own ---------------------------------------------------------------------------------------------------


@pytest.fixture
def doubled() -> Iterator[type[nn.Module]]:
    @register_qmodule([nn.Linear])
    class Doubled(QuantOpr):
        def __init__(self, org_module: nn.Linear, config: Any = None) -> None:
            super().__init__()
            self.weight, self.bias = org_module.weight, org_module.bias

        def forward(self, x: Tensor) -> Tensor:
            assert self.weight is not None and self.weight_quantizer is not None
            return 2 * F.linear(self.input_quantizer(x), self.weight_quantizer(self.weight), self.bias)

    yield Doubled
    unregister_qmodule(Doubled)


@pytest.mark.parametrize("target", sorted(CONFIGS))
def test_a_registered_class_stands_in_for_a_module(
    target: str, doubled: type[nn.Module], tmp_path: Path
) -> None:
    qmodel = quantized(residual(), CONFIGS[target], on=False)
    assert type(qmodel.model.fc) is doubled and {"fc.input", "fc.weight"} <= set(qmodel.quantizers)
    torch.testing.assert_close(qmodel(images()), 2 * residual()(images()), rtol=1e-4, atol=1e-5)
    assert all(q.calibrated for q in qmodel.quantizers.values())
    qmodel.set_quant(w_quant=True, a_quant=True)
    expected = 2 * residual()(images())
    assert 0 < (qmodel(images()) - expected).norm() < 0.05 * expected.norm()
    qmodel.save(tmp_path / "saved")
    assert torch.equal(QuantModel.load(tmp_path / "saved", residual(1))(images()), qmodel(images()))
    qmodel.calibrate([images()], asym=True, w_quant=True, a_quant=True, progress=False)
    assert all(q.calibrated for q in qmodel.quantizers.values())
    assert qmodel.get_quantization_error(images())["fc"] > 0


def test_the_config_reaches_its_quantizers(doubled: type[nn.Module]) -> None:
    rules = {"fc": ["QUANTIZER.BIT", 4]}
    qmodel = quantized(residual(), config(W__SPECIFIC=rules, A__SPECIFIC={"fc": ["QUANTIZER.DISABLE", True]}))
    assert qmodel.model.fc.weight_quantizer.bit == 4 and qmodel.model.fc.input_quantizer.fake_fused


def test_a_registered_class_stands_in_for_a_function() -> None:
    @register_qmodule([torch.softmax])
    class Base2(QuantOpr):
        def __init__(self, node: Node, config: Any = None) -> None:
            super().__init__()
            self.dim = node.args[1] if len(node.args) > 1 else node.kwargs["dim"]

        def forward(self, x: Tensor) -> Tensor:
            power = torch.exp2(self.input_quantizer(x))
            return power / power.sum(self.dim, keepdim=True)

    try:
        net = nn.Sequential(nn.Linear(4, 4), _Soft()).eval()
        x = torch.randn(2, 4)
        qmodel = quantized(net, None, x, on=False)
        power = torch.exp2(net[0](x))
        torch.testing.assert_close(qmodel(x), power / power.sum(-1, keepdim=True))
        assert any(name.endswith(".input") for name in qmodel.quantizers)
    finally:
        unregister_qmodule(Base2)
    assert torch.softmax not in QMODULES


class _Soft(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.softmax(-1)


def test_a_second_class_for_the_same_source_is_refused(doubled: type[nn.Module]) -> None:
    with pytest.raises(RegistryError, match=r"already replaced by Doubled(.|\n)*replace=True"):
        register_qmodule([nn.Linear])(doubled)
    assert register_qmodule([nn.Linear], replace=True)(doubled) is doubled


@pytest.mark.parametrize("sources", [nn.Linear, "linear", [], ["linear"], [nn.ReLU()], 3])
def test_sources_are_a_list_of_classes_and_functions(sources: Any) -> None:
    with pytest.raises(RegistryError, match=r"is not a source\n.*a list of module classes"):
        register_qmodule(sources=sources)(QuantOpr)


def test_what_is_not_a_module_cannot_stand_in_for_one() -> None:
    with pytest.raises(RegistryError, match="is not a module"):

        @register_qmodule(sources=[nn.Tanh])  # type: ignore[type-var]
        class Plain: ...

    assert nn.Tanh not in QMODULES


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"__init__": lambda self, source, config=None: None}, "does not call the one of its base class"),
        ({"__init__": lambda self: None}, r"cannot be made for Linear\(.*: TypeError"),
        ({"forward": lambda self, x: len(3)}, "cannot run in place of 'fc': TypeError"),
        (
            {"forward": lambda self, x: x[:1]},
            r"the place of that of 'fc'\n  expected: torch.float32 of shape \[4, ",
        ),
        ({"forward": lambda self, x: None}, "the place of that of 'fc'"),
    ],
)
def test_mistakes_of_a_registered_class_are_reported_as_its_own(wrong: Any, told: str) -> None:
    methods = {"__init__": lambda self, source, config=None: QuantOpr.__init__(self), **wrong}
    kind = register_qmodule([nn.Linear])(type("Mine", (QuantOpr,), methods))
    try:
        with pytest.raises(PlugInError, match=f"Mine.*{told}"):
            QuantModel(residual(), config(), images())
    finally:
        unregister_qmodule(kind)
