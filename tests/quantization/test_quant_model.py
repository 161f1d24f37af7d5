"""The recipe, step by step, in and out of order, on good data and bad."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sparsebit.errors import ConfigError, SparsebitError
from sparsebit.quantization import QUANTIZERS, QuantModel, parse_qconfig
from tests.quantization.nets import CONFIGS, Residual, config, grids, images, quantized, residual


def loader(batches: int = 3, batch: int = 4) -> list[tuple[Tensor, Tensor]]:
    return [(images(batch, seed), torch.zeros(batch)) for seed in range(batches)]


@pytest.mark.parametrize("target", sorted(CONFIGS))
def test_the_recipe(target: str) -> None:
    qcfg = parse_qconfig(CONFIGS[target])
    net = residual()
    qmodel = QuantModel(net, qcfg, example_inputs=(images(),)).to(qcfg.DEVICE)
    qmodel.prepare_calibration()
    for x, _ in loader():
        qmodel(x)
    qmodel.calc_qparams()
    qmodel.set_quant(w_quant=True, a_quant=True)
    expected, got = net(images()), qmodel(images())
    assert not torch.equal(got, expected)
    assert (got - expected).norm() < 0.05 * expected.norm()
    qmodel.set_quant()
    torch.testing.assert_close(qmodel(images()), expected, rtol=1e-4, atol=1e-5)


def test_one_call_does_the_same_as_the_steps() -> None:
    by_hand, at_once = (QuantModel(residual(), config(), images()) for _ in range(2))
    by_hand.prepare_calibration()
    for x, _ in loader()[:2]:
        by_hand(x)
    by_hand.calc_qparams()
    at_once.calibrate(loader(), batches=2, progress=False)
    assert grids(by_hand) == grids(at_once)


def test_the_config_may_be_a_path_a_preset_or_a_dict(tmp_path: Path) -> None:
    path = tmp_path / "qconfig.yaml"
    path.write_text(parse_qconfig(config()).to_yaml(), encoding="utf-8")
    plans = [QuantModel(residual(), source, images()).plan for source in (path, str(path), config())]
    assert plans[0] == plans[1] == plans[2]
    assert QuantModel(residual(), "int8_tensorrt", images()).plan.target == "tensorrt"


def test_keyword_arguments_and_without_example_inputs() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            y: Tensor = self.fc(x) * scale
            return y

    x, net = torch.randn(2, 4), Net().eval()
    named = QuantModel(net, config(), {"x": x, "scale": x})
    mixed = QuantModel(net, config(), (x,), {"scale": x})
    traced = QuantModel(net, config())
    for qmodel in (named, mixed, traced):
        torch.testing.assert_close(qmodel(x=x, scale=x), net(x, x))
    named.calibrate([{"x": x, "scale": x}], progress=False)
    mixed.calibrate([(x, x)], feed=lambda batch: {"x": batch[0], "scale": batch[1]}, progress=False)
    traced.calibrate([{"x": x, "scale": x}], progress=False)
    assert grids(named) == grids(mixed) == grids(traced)


# -- what it must leave alone ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", sorted(CONFIGS))
def test_the_users_model_stays_as_it_was(target: str, tmp_path: Path) -> None:
    net = residual().train()
    net.bn1.eval()  # frozen
    fired: list[str] = []
    net.conv1.register_forward_hook(lambda *_: fired.append("conv1"))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    modes = {name: module.training for name, module in net.named_modules()}
    kinds = {name: type(module) for name, module in net.named_modules()}
    tensors = {name: id(value) for name, value in (*net.named_parameters(), *net.named_buffers())}
    qmodel = QuantModel(net, CONFIGS[target], images())
    qmodel.calibrate(loader(), progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    qmodel.get_quantization_error(images())
    qmodel.save(tmp_path / "saved")
    QuantModel.load(tmp_path / "saved", net)
    assert {name: module.training for name, module in net.named_modules()} == modes
    assert {name: type(module) for name, module in net.named_modules()} == kinds
    assert {name: id(value) for name, value in (*net.named_parameters(), *net.named_buffers())} == tensors
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    fired.clear()
    net(images())
    assert fired == ["conv1"]


def test_it_keeps_the_mode_of_every_module() -> None:
    net = residual().train()
    net.bn1.eval()
    qmodel = QuantModel(net, config(SCHEDULE={}), images())
    assert qmodel.training and qmodel.model.training
    assert not qmodel.model.bn1.training and qmodel.model.bn2.training and qmodel.model.drop.training


def test_deepcopy_gives_an_independent_model_with_the_same_numbers() -> None:
    qmodel = quantized()
    twin = copy.deepcopy(qmodel)
    assert torch.equal(twin(images()), qmodel(images()))
    assert twin.model.conv2.input_quantizer is twin.quantizers["relu"]
    assert twin.model.add.input_quantizer is None
    twin.model.conv2.input_quantizer.set_bit(4)
    assert qmodel.quantizers["relu"].bit == 8
    with torch.no_grad():
        twin.model.fc.weight.zero_()
    assert qmodel.model.fc.weight.any()


# -- state ----------------------------------------------------------------------------------------------------------


def test_a_state_dict_of_other_widths_is_refused(tmp_path: Path) -> None:
    four, eight = (QuantModel(residual(), name, images()) for name in ("w4a8", "int8_onnxruntime"))
    eight.calibrate([images()], progress=False)
    torch.save(eight.state_dict(), tmp_path / "state.pt")
    with pytest.raises(
        RuntimeError, match="is for int8, and this model has int4: set the widths as they were"
    ):
        four.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))


def test_a_state_dict_loads_into_a_fresh_model() -> None:
    qmodel = quantized()
    fresh = QuantModel(residual(seed=1), config(), images())
    fresh.load_state_dict(qmodel.state_dict())
    fresh.set_quant(w_quant=True, a_quant=True)
    assert torch.equal(fresh(images()), qmodel(images()))


@pytest.mark.parametrize("name", sorted(QUANTIZERS))
def test_training_moves_the_weights_with_every_quantizer(name: str) -> None:
    changes = {}
    for side in ("W", "A"):
        try:
            parse_qconfig(config(**{f"{side}__QUANTIZER__TYPE": name}))
            changes[f"{side}__QUANTIZER__TYPE"] = name
        except ConfigError:
            continue  # not for this side
    assert changes
    if name == "adaround":
        pytest.skip("it is found by reconstruction, not by training")
    qmodel = QuantModel(residual(), config(**changes), images())
    qmodel.prepare_calibration()
    qmodel(images())
    qmodel.init_QAT()
    assert qmodel.enable_qat
    qmodel.train()
    optimizer = torch.optim.SGD(qmodel.parameters(), lr=0.05)
    losses = []
    for _ in range(5):
        loss = F.mse_loss(qmodel(images()), torch.ones(4, 5))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    gradients = [p.grad for p in qmodel.parameters()]
    assert all(g is not None and bool(g.isfinite().all()) for g in gradients)
    assert losses[-1] < losses[0]


# -- looking at it --------------------------------------------------------------------------------------------------


def test_print_shows_every_quantizer_on_one_line() -> None:
    qmodel = quantized()
    first, *lines = str(qmodel).splitlines()
    assert "virtual" in first and len(lines) == len(qmodel.quantizers) == len(qmodel.plan.tensors)
    for line, (name, quantizer) in zip(lines, qmodel.quantizers.items(), strict=True):
        assert f" {name}: " in line and quantizer.spec.scheme in line and "scale" in line
    assert "(off)" not in str(qmodel) and "(not calibrated)" not in str(qmodel)
    qmodel.set_quant(w_quant=True)
    assert str(qmodel).count("(off)") == len(qmodel.plan.activations())
    assert str(QuantModel(residual(), config(), images())).count("(not calibrated)") == len(lines)


def test_dump_mermaid_draws_the_quantizers() -> None:
    qmodel, text = quantized(), io.StringIO()
    qmodel.dump_mermaid(text)
    drawn = text.getvalue()
    assert drawn.startswith(("flowchart", "graph"))
    assert all(f"{name}_quantizer" in drawn for name in ("x", "relu"))


# -- bad input ------------------------------------------------------------------------------------------------------


# -- the acceptance cases of the first Sparsebit --------------------------------------------------------------------


def check_off(net: nn.Module, settings: Any, *args: Tensor) -> QuantModel:
    qmodel = QuantModel(net.eval(), settings, args)
    torch.testing.assert_close(qmodel(*args), net(*args), rtol=1e-4, atol=1e-4)
    return qmodel


def test_acceptance_an_addition_reads_quantizers() -> None:
    class Added(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.add(self.conv1(x), self.conv2(x))

    qmodel = check_off(Added(), config("tensorrt", A__QADD__ENABLE_QUANT=True), images())
    assert len(qmodel.model.add.input_quantizers) == 2


def test_acceptance_attention_and_a_vision_transformer() -> None:
    from tests.zoo.nets.vit import Attention

    qmodel = check_off(Attention(192, 3, fused=False), config(), torch.randn(1, 197, 192))
    assert all(qmodel.model.get_submodule("qkv").input_quantizers)
    assert len(qmodel.model.matmul.input_quantizers) == 2


def test_acceptance_embeddings_with_token_and_type_ids() -> None:
    class Embeddings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.types = nn.Embedding(3052, 64), nn.Embedding(2, 64)
            self.positions, self.norm = nn.Embedding(32, 64), nn.LayerNorm(64)
            self.register_buffer("ids", torch.arange(32)[None])

        def forward(self, tokens: Tensor, types: Tensor) -> Tensor:
            places = self.positions(self.ids[:, : tokens.size(1)])
            y: Tensor = self.norm(self.words(tokens) + self.types(types) + places)
            return y

    tokens, types = torch.randint(3052, (2, 32)), torch.randint(2, (2, 32))
    qmodel = check_off(Embeddings(), config(), tokens, types)
    assert {w.name for w in qmodel.plan.weights()} == {"words.weight", "types.weight", "positions.weight"}
    assert [a.consumers for a in qmodel.plan.activations()] == [("norm",)]


def test_the_seeds_access_by_flat_name() -> None:
    from tests.zoo.nets.cifar_resnet import cifar_resnet20

    qmodel = QuantModel(cifar_resnet20(width=4).eval(), config(W__QUANTIZER__BIT=4), images())
    qmodel.model.layer1_0_conv1.input_quantizer.set_bit(8)
    qmodel.model.conv1.weight_quantizer.set_bit(8)
    assert qmodel.model.layer1_0_conv1.weight_quantizer.bit == 4
    assert qmodel.model.conv1.weight_quantizer.bit == 8
    qmodel.calibrate([images()], progress=False)
    assert str(qmodel.quantizers["conv1.weight"].code) == "int8"
    with pytest.raises(ConfigError, match="bits from 2 to 16"):
        qmodel.model.conv1.weight_quantizer.set_bit(1)


def test_a_plan_of_another_graph_is_refused() -> None:
    plan = QuantModel(residual(), config(), images()).plan
    with pytest.raises(SparsebitError, match="the plan names"):
        QuantModel(nn.Sequential(nn.Conv2d(3, 4, 1)).eval(), config(), images(), plan=plan)


def test_unknown_patterns_are_errors_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="the nearest name is 'conv1'"):
        QuantModel(Residual(), config(W__SPECIFIC={"cnv1": ["QUANTIZER.BIT", 4]}), images())
    with pytest.raises(SparsebitError, match=r"'nope\*' matches no module"):
        QuantModel(Residual(), config(SKIP_TRACE_MODULES=["nope*"]), images())


def test_skipped_modules_stay_in_float_with_every_layer_inside() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 4, 1), nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()), nn.Conv2d(4, 4, 1)
    ).eval()
    for pattern in ("1", "1.*"):  # the module as one node, and a torch.nn leaf inside a module that is traced
        settings = config(SKIP_TRACE_MODULES=[pattern])
        plan = QuantModel(net, settings, images()).plan
        assert {tensor.name for tensor in plan.weights()} == {"0.weight", "2.weight"}
        assert any(edge.reason.startswith("SKIP_TRACE_MODULES names it") for edge in plan.edges)
    for side in ("W", "A"):
        with pytest.raises(ConfigError, match="SKIP_TRACE_MODULES names it"):
            QuantModel(
                net,
                settings | {side: settings[side] | {"SPECIFIC": {"1.0": ["OBSERVER.TYPE", "mse"]}}},
                images(),
            )


def test_a_pattern_may_name_a_batch_norm_that_was_folded() -> None:
    QuantModel(residual(), config(A__SPECIFIC={"bn1": ["QUANTIZER.DISABLE", True]}), images())


# -- what does not belong to the data ----------------------------------------------------------------------------


# -- copies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["fresh", "measuring", "calibrated", "recovered"])
def test_a_copy_is_a_model_of_its_own(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparsebit.quantization.calibration.spill_list.MOST_IN_MEMORY", 0)
    steps = ["equalization", {"brecq": {"steps": 2}}] if state == "recovered" else []
    qmodel = QuantModel(residual(), config(SCHEDULE={"FUSE_BN": True, "RECOVERY": steps}), images())
    if state == "measuring":
        qmodel.prepare_calibration()
        qmodel(images())
    elif state != "fresh":
        qmodel.calibrate([images()], progress=False)
    twin = copy.deepcopy(qmodel)
    shown = {q for module in twin.model.modules() for q in getattr(module, "input_quantizers", ())}
    assert shown and shown <= set(twin.quantizers.values())
    assert not {id(t) for t in twin.state_dict(keep_vars=True).values()} & {
        id(t) for t in qmodel.state_dict(keep_vars=True).values()
    }
    if state == "measuring":
        qmodel.calc_qparams(asym=True)
    before = {name: value.clone() for name, value in twin.state_dict().items()}
    expected = None if state == "fresh" else quantized_output(qmodel)
    del qmodel  # and what it kept on disk
    assert all(torch.equal(value, before[name]) for name, value in twin.state_dict().items())
    if state == "measuring":
        twin.calc_qparams(asym=True)
    assert expected is None or torch.equal(quantized_output(twin), expected)


def quantized_output(qmodel: QuantModel) -> Tensor:
    qmodel.set_quant(w_quant=True, a_quant=True)
    outputs: Tensor = qmodel(images())
    return outputs


class RawOutputsInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.Conv2d(4, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        maps = self.head(self.body(x).relu())
        return maps if self.training else maps.softmax(1)


def test_a_model_that_trains_with_other_operations_is_refused_as_a_whole_and_trains_on_request() -> None:
    x = torch.randn(2, 3, 8, 8)
    qmodel = QuantModel(RawOutputsInTraining().eval(), config(), example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.init_QAT()
    with pytest.raises(SparsebitError, match=r"qmodel\.model\.keep_operations\(\)"):
        qmodel.train()
    assert not any(module.training for module in qmodel.modules()), "nothing has switched"
    qmodel.model.keep_operations()
    qmodel.train()
    assert qmodel.training and all(m.training for m in qmodel.modules() if isinstance(m, nn.BatchNorm2d))
    qmodel(x).square().mean().backward()
    assert qmodel.eval() is qmodel
