"""What can be chosen for: tensors that a config cannot tell apart belong together."""

from __future__ import annotations

from torch import Tensor, nn

from sparsebit.analysis import FLOAT, with_layer_bits
from sparsebit.analysis.bits.choices import find_choices, find_products
from sparsebit.quantization import QuantModel, parse_qconfig
from tests.analysis.bits.nets import CONFIG, FAST, measured


def test_tensors_that_meet_in_an_addition_are_chosen_for_together(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    config = parse_qconfig("int8_onnxruntime", ["DEVICE=cpu", *FAST])
    qmodel = QuantModel(net, config, example_inputs=(batches[0][0],))
    qmodel.calibrate(batches, progress=False)
    choices = find_choices(qmodel, ("A",))
    together = next(choice for choice in choices if "add" in choice.layers)
    assert {"relu", "inner"} <= set(together.tensors) and {"add", "inner"} <= set(together.layers)
    for width in (4, 7):  # a rule for its layers reaches all of its tensors
        changed = QuantModel(
            net, with_layer_bits(config, inputs=dict.fromkeys(together.layers, width)), (batches[0][0],)
        )
        assert {changed.quantizers[name].bit for name in together.tensors} == {width}
        others = set(changed.quantizers) - set(together.tensors)
        assert {changed.quantizers[name].bit for name in others} == {8}


def test_a_layer_that_is_called_twice_has_one_weight_and_two_inputs(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    qmodel = QuantModel(net, CONFIG, example_inputs=(batches[0][0],))
    qmodel.calibrate(batches, progress=False)
    choices = find_choices(qmodel, ("W", "A"))
    assert [c.name for c in choices if c.side == "W" and "twice" in c.layers] == ["twice.weight"]
    inputs = [c for c in choices if c.side == "A" and any(layer.startswith("twice") for layer in c.layers)]
    assert sorted(layer for c in inputs for layer in c.layers) == ["twice", "twice_1"]
    products = {product.node: product for product in find_products(qmodel, choices)}
    assert products["twice"].operands[0] == products["twice_1"].operands[0] == "twice.weight"
    assert products["twice"].operands[1] != products["twice_1"].operands[1]


def test_sizes_and_bit_operations_are_counted_by_hand(
    net: nn.Module, batches: list[tuple[Tensor, Tensor]]
) -> None:
    found = measured(net, batches, bits=(4, 8), sides=("W", "A"))
    weights = {name: p for name, p in net.named_parameters() if name.endswith("weight")}
    biases = sum(4 * p.numel() for name, p in net.named_parameters() if name.endswith("bias"))
    expected = biases + sum(p.numel() / 2 + 4 * p.shape[0] for p in weights.values())
    assert found.size(found.uniform(4)) == expected
    assert found.size(dict.fromkeys(found.errors, FLOAT)) == sum(4 * p.numel() for p in net.parameters())
    positions = 8 * 8 * 8  # batch, rows, columns
    macs = positions * (27 * 8 + 72 * 8 + 8 * 8) + 8 * (2 * 64 + 32)
    assert found.bops(found.uniform(8)) == 64 * macs
