"""What must hold for every model, every target and every preset."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.fx import Node

from sparsebit.config.quantization.presets import preset_names
from sparsebit.errors import SpecializationWarning
from sparsebit.graph.ops.spec import fetch_tensor
from sparsebit.graph.value import TensorInfo
from sparsebit.quantization import Quantizer, QuantModel
from sparsebit.targets import TARGETS
from tests.quantization.nets import CONFIGS
from tests.zoo import ZOO, outputs_of

# One of each kind of trouble: residuals, concat, pools, gates, upsampling, transposed and 3-D convolution,
# recurrence, attention in every spelling, masks, tied and shared weights, in-place writes, odd signatures.
SAMPLE = (
    *("resnet18", "mobilenet_v3", "densenet", "shufflenet_v2", "googlenet", "unet_bilinear", "espnet"),
    *("conv_autoencoder", "video_conv3d", "yolo", "lstm_classifier", "gru_seq2seq", "packed_lstm"),
    *("hf_bert_eager", "hf_albert", "hf_llama_eager", "hf_t5_gated_encoder", "hf_convnext", "hf_xlnet"),
    *("transformer_encoder", "vit_matmul", "vit_sdpa", "embedding_bag", "wavenet", "text_cnn"),
    *("nasty_called_twice", "nasty_shared_batch_norm", "nasty_tied_embedding", "nasty_transposed_tie"),
    *("nasty_inplace_through_view", "nasty_inplace_relu_reused", "nasty_nested_input", "nasty_no_input"),
    *("nasty_dataclass_in_out", "nasty_integer_input", "nasty_mixed_dtypes", "nasty_autocast_on"),
    *("nasty_raw_convolutions", "nasty_functional_batch_norm", "nasty_old_weight_norm", "nasty_causal_mask"),
    *("nasty_parametrized_norms", "nasty_embedding_max_norm", "nasty_cached_mask", "nasty_fourier_filter"),
    *("nasty_output_is_input", "nasty_matrix_products", "nasty_operator_zoo", "nasty_unused_input"),
)
MODELS_WITH_TARGETS = [
    # Every model under the target that quantizes most and the one with the most rules; some under all.
    pytest.param(name, target, id=f"{name}-{target}")
    for index, name in enumerate(SAMPLE)
    for target in sorted(TARGETS)
    if target in ("virtual", "onnxruntime") or index % 5 == 0
]


def build(name: str, settings: Any) -> QuantModel:
    torch.manual_seed(0)
    args, kwargs = ZOO[name].inputs(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SpecializationWarning)
        return QuantModel(ZOO[name].make(), settings, args, kwargs)


def run(name: str, model: Any) -> list[torch.Tensor]:
    args, kwargs = ZOO[name].inputs(2)
    torch.manual_seed(1)
    with torch.no_grad():
        return outputs_of(model(*args, **kwargs))


def quantizer_nodes(qmodel: QuantModel) -> dict[Node, Quantizer]:
    return {
        node: module
        for node in qmodel.model.graph.nodes
        if node.op == "call_module"
        and isinstance(module := qmodel.model.get_submodule(str(node.target)), Quantizer)
    }


@pytest.mark.parametrize(("name", "target"), MODELS_WITH_TARGETS)
def test_every_model(name: str, target: str) -> None:
    """Off it equals the float model, on it comes close; and the graph is what the plan says."""
    qmodel = build(name, CONFIGS[target])
    torch.manual_seed(0)
    expected = run(name, ZOO[name].make())
    for got, wanted in zip(run(name, qmodel), expected, strict=True):
        assert got.dtype == wanted.dtype and got.shape == wanted.shape
        if wanted.is_floating_point():
            scale = wanted[wanted.isfinite()].abs().max().item() if wanted.numel() else 0.0
            torch.testing.assert_close(got, wanted, rtol=0, atol=2e-6 * scale, equal_nan=True)
        else:
            assert torch.equal(got, wanted)
    check_structure(qmodel)

    args, kwargs = ZOO[name].inputs(2)
    qmodel.prepare_calibration()
    qmodel(*args, **kwargs)
    qmodel.calc_qparams()
    qmodel.set_quant(w_quant=True, a_quant=True)
    for got, wanted in zip(run(name, qmodel), expected, strict=True):
        if wanted.is_floating_point() and wanted.numel() > 1:
            finite = wanted.isfinite()
            assert bool(got[finite].isfinite().all())
            noise, signal = (got - wanted)[finite].double().norm(), wanted[finite].double().norm()
            assert noise <= 0.2 * signal, f"{20 * torch.log10(signal / noise):.1f} dB"


def check_structure(qmodel: QuantModel) -> None:
    plan, gm = qmodel.plan, qmodel.model
    nodes = {node.name: node for node in gm.graph.nodes}
    found = quantizer_nodes(qmodel)

    names = [tensor.name for tensor in plan.tensors]
    assert len(set(names)) == len(names) and set(names) == set(qmodel.quantizers)
    sources = [node.args[0] for node, quantizer in found.items() if quantizer.side == "A"]
    assert len(set(sources)) == len(sources), "two quantizers on one tensor"
    for source in sources:
        assert isinstance(source, Node)
        assert dtype_of(qmodel, source).is_floating_point
    assert all(not isinstance(source, Node) or source not in found for source in sources), "quantized twice"

    by_name = {quantizer.name: node for node, quantizer in found.items()}
    for tensor in plan.activations():
        for reader in tensor.readers:
            if nodes[reader].op != "output":
                assert by_name[tensor.name] in nodes[reader].all_input_nodes
    for edge in plan.edges:
        assert edge.reason and edge.consumer in nodes
        if edge.tensor is not None:
            assert reaches(nodes[edge.consumer], by_name[edge.tensor]), edge
    for tensor in plan.weights():
        for reader in tensor.readers:
            node = nodes[reader]
            if node.op == "call_module":
                module = gm.get_submodule(str(node.target))
                assert module.weight_quantizer is qmodel.quantizers[tensor.name]
            else:
                assert by_name[tensor.name] in node.all_input_nodes


def dtype_of(qmodel: QuantModel, node: Node) -> torch.dtype:
    if node.op == "get_attr":
        return fetch_tensor(qmodel.model, str(node.target)).dtype
    assert isinstance(node.meta["value"], TensorInfo)
    return node.meta["value"].dtype


def reaches(node: Node, quantizer: Node) -> bool:
    """Whether a node reads a quantizer's result, perhaps through reshapes."""
    seen, waiting = set(), list(node.all_input_nodes)
    while waiting:
        source = waiting.pop()
        if source is quantizer:
            return True
        if source not in seen:
            seen.add(source)
            waiting += source.all_input_nodes
    return False


@pytest.mark.parametrize("preset", preset_names())
@pytest.mark.parametrize("name", ["squeezenet", "hf_bert", "nasty_tied_embedding"])
def test_every_preset_quantizes_and_stays_close(name: str, preset: str) -> None:
    qmodel = build(name, preset)
    args, kwargs = ZOO[name].inputs(2)
    qmodel.prepare_calibration()
    qmodel(*args, **kwargs)
    qmodel.calc_qparams()
    torch.manual_seed(0)
    expected = run(name, ZOO[name].make())
    qmodel.set_quant(w_quant=True, a_quant=True)
    for got, wanted in zip(run(name, qmodel), expected, strict=True):
        assert (got - wanted).norm() <= 0.5 * wanted.norm()
    # a preset that leaves the first and last layer in float has nothing to do in a net of two
    two_layers_in_float = preset == "w4a16_g128" and name == "nasty_tied_embedding"
    assert bool(qmodel.plan.weights()) != two_layers_in_float


@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize(
    "name",
    [
        "resnet18",
        "densenet",
        "vit_matmul",
        "wavenet",
        "unet_bilinear",
        "nasty_tied_embedding",
        "nasty_long_chain",
    ],
)
def test_without_example_inputs_the_plan_is_the_same(name: str, target: str) -> None:
    recorded = build(name, CONFIGS[target])
    torch.manual_seed(0)
    traced = QuantModel(ZOO[name].make(), CONFIGS[target])
    assert traced.plan.weights() == recorded.plan.weights()
    plans = recorded.plan, traced.plan
    specs = [[(tensor.spec, len(tensor.consumers)) for tensor in plan.activations()] for plan in plans]
    assert specs[0] == specs[1]
    modules = dict(traced.model.named_modules())
    readers = [[e.consumer for e in plan.edges if e.tensor and e.consumer in modules] for plan in plans]
    assert readers[0] == readers[1]
