"""Quantizers in the graph: between what, under which names, and in whose modules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from sparsebit.config import load_qconfig
from sparsebit.errors import GraphError, RegistryError
from sparsebit.graph.capture import capture
from sparsebit.quantization import QuantModel, make_plan
from sparsebit.quantization.modules.insert import insert_quantizers, make_quantizer
from sparsebit.quantization.modules.qmodules import QuantOpr
from tests.quantization.nets import config, images, quantized, residual


def test_a_graph_with_its_plan_inserted() -> None:
    gm = capture(residual(), images())
    plan = make_plan(gm, load_qconfig(config(SCHEDULE={})))
    expected = gm(images())
    made = insert_quantizers(gm, plan)
    assert set(made) == {tensor.name for tensor in plan.tensors}
    assert torch.equal(gm(images()), expected), "off, they change nothing"
    gm.graph.lint()
    for node in gm.graph.nodes:
        if node.name.endswith("_quantizer"):
            assert node.meta["value"] == node.args[0].meta["value"]


def test_the_models_own_names_are_in_nobodys_way() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.quantizers = nn.ModuleList([nn.Linear(4, 4)])
            self.weight_quantizer, self.model = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.model(self.weight_quantizer(self.quantizers[0](x)))
            return y

    net, x = Named().eval(), torch.randn(2, 4)
    qmodel = quantized(net, None, x)
    assert {w.name for w in qmodel.plan.weights()} == {
        "quantizers.0.weight",
        "weight_quantizer.weight",
        "model.weight",
    }
    assert (qmodel(x) - net(x)).norm() < 0.05 * net(x).norm()


def test_keys_of_the_state_dict_are_the_models_own_and_those_of_quantizers() -> None:
    own = set(residual().state_dict())
    qmodel = QuantModel(residual(), config(SCHEDULE={}), images())
    keys = set(qmodel.model.state_dict())
    assert own <= keys
    assert all(key.endswith((".scale", ".zero_point")) for key in keys - own)
    assert len(keys - own) == 2 * len(qmodel.quantizers)


def test_a_quantizer_nobody_registered_and_a_plan_for_another_graph() -> None:
    gm = capture(residual(), images())
    plan = make_plan(gm, load_qconfig(config(SCHEDULE={})))
    spec = plan.tensors[0].spec
    object.__setattr__(spec, "quantizer", "unifrom")
    with pytest.raises(RegistryError, match=r"unifrom(.|\n)*uniform"):
        make_quantizer("it", "A", spec, plan.tensors[0].layout)
    other = capture(nn.Sequential(nn.Linear(8, 8)).eval(), images())
    with pytest.raises(GraphError, match=r"the plan names(.|\n)*make a new one"):
        insert_quantizers(other, make_plan(gm, load_qconfig(config(SCHEDULE={}))))


def test_a_plan_for_a_consumer_that_the_graph_lacks_is_an_error() -> None:
    gm = capture(residual(), images())
    plan = make_plan(gm, load_qconfig(config(SCHEDULE={})))
    first = next(edge for edge in plan.edges if edge.tensor is not None)
    wrong = replace(plan, edges=(replace(first, consumer="nowhere"),))
    with pytest.raises(GraphError, match=r"the plan names 'nowhere'(.|\n)*make a new one"):
        insert_quantizers(gm, wrong)


def test_inputs_that_no_one_computes_keep_their_place() -> None:
    """Quantizers of placeholders and parameters stand behind all of them, where the normal form wants them."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.offset = nn.Parameter(torch.randn(4))

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return (x + y) + self.offset

    args = torch.randn(2, 4), torch.randn(2, 4)
    gm = QuantModel(Two().eval(), config(A__QADD__ENABLE_QUANT=True), args).model
    kinds = [node.op for node in gm.graph.nodes]
    first_call = kinds.index("call_module")
    assert set(kinds[:first_call]) == {"placeholder", "get_attr"}
    assert not {"placeholder", "get_attr"} & set(kinds[first_call:])


def test_a_quant_opr_placed_by_hand_is_left_alone() -> None:
    class Doubled(QuantOpr):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * self.input_quantizer(x)

    by_hand = Doubled()
    model = nn.Sequential(nn.Linear(4, 4), by_hand, nn.Linear(4, 4)).eval()
    x = torch.randn(8, 4)
    qmodel = QuantModel(model, "int8_onnxruntime", example_inputs=(x,))
    placed = qmodel.model.get_submodule("1")
    assert type(placed) is Doubled and placed is not by_hand and type(by_hand.input_quantizer) is nn.Identity
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(True, True)
    assert placed.input_quantizer.spec.bits == 8
    torch.testing.assert_close(qmodel(x), qmodel(x))
