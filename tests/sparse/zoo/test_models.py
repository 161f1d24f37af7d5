"""Whole nets: the CNNs, recurrent nets and transformers of the model zoo, half of the units removed."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from sparsebit.analysis.node_cost import cost
from sparsebit.graph.capture import capture
from sparsebit.sparse.channels import find_groups
from sparsebit.sparse.shrink import make_plan, shrink_graph, shrink_module
from tests.sparse.zoo.checks import captured, error_against_original, shrunk
from tests.zoo import ZOO
from tests.zoo.huggingface import SPREAD, hf
from tests.zoo.nets import mobilenet, resnet

# name -> the share of the multiply-accumulates that may be left; outputs that are hidden states keep their width
NETS = {
    **{"resnet18": 0.35, "cifar_resnet20": 0.28, "mobilenet_v3": 0.35, "efficientnet_lite": 0.35},
    **{"shufflenet_v2": 0.4, "densenet": 0.3, "unet": 0.28, "yolo": 0.28, "fastestdet": 0.36, "espnet": 0.3},
    **{"hf_regnet": 0.4, "packed_lstm": 0.4, "gru_seq2seq": 0.35, "lstm_classifier": 0.3},
    **{"hf_bert": 0.52, "hf_bert_eager": 0.52, "hf_bert_tagger": 0.3, "hf_vit_eager": 0.36, "hf_deit": 0.36},
    **{"hf_convnext": 0.38, "hf_resnet": 0.52, "hf_segformer": 0.38, "hf_mobilenet_v2": 0.34},
    **{
        "hf_llama": 0.33,
        "hf_qwen2": 0.33,
        "hf_qwen3": 0.33,
        "hf_swin": 0.3,
        "hf_swin_v2": 0.42,
        "hf_gpt2": 0.31,
    },
    **{"hf_phi": 0.33, "hf_t5": 0.56, "hf_falcon": 0.31, "hf_whisper": 0.52, "transformer_seq2seq": 0.3},
}


def in_double(value: object) -> object:
    """Every float tensor as float64."""
    return pytree.tree_map(
        lambda x: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x, value
    )


@pytest.mark.filterwarnings("ignore::sparsebit.errors.SpecializationWarning")
@pytest.mark.parametrize("name", sorted(NETS))
def test_net_equals_masked_original(name: str) -> None:
    if name.startswith("hf_"):
        pytest.importorskip("transformers")
    entry = ZOO[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = entry.make().double()
        args, kwargs = in_double(entry.inputs(2))  # type: ignore[misc]
        gm = captured(model, args, kwargs)
    small, _ = shrunk(gm, find_groups(gm), 0.5)
    assert error_against_original(gm, small, args, kwargs) < 1e-11
    assert cost(small).macs < NETS[name] * cost(gm).macs
    args, kwargs = in_double(entry.inputs(3))  # type: ignore[misc]
    assert error_against_original(gm, small, args, kwargs) < 1e-11


@pytest.mark.parametrize(
    ("make", "before", "after"),
    [
        (resnet.resnet18, 1.81e9, 483e6),
        (resnet.resnet50, 4.09e9, 1.05e9),
        (mobilenet.MobileNetV2, 301e6, 83e6),
    ],
)
def test_half_of_the_channels_leave_the_published_macs(
    make: type[nn.Module], before: float, after: float
) -> None:
    gm = capture(make().eval(), (torch.randn(1, 3, 224, 224),))
    groups = find_groups(gm)
    kept = {group.name: torch.arange(group.channels) % 2 == 0 for group in groups.free}
    small = shrink_graph(gm, make_plan(gm, groups, kept))
    assert cost(gm).macs == pytest.approx(before, rel=0.01)
    assert cost(small).macs == pytest.approx(after, rel=0.01)


def test_tied_embeddings_stay_tied_and_the_own_class_runs() -> None:
    pytest.importorskip("transformers")
    options = {"vocab_size": 60, "num_key_value_heads": 2, "use_cache": False, "tie_word_embeddings": True}
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model = hf("LlamaForCausalLM", "LlamaConfig", **options, **sizes, **SPREAD)().eval()
    inputs = {"input_ids": torch.randint(60, (2, 7))}
    gm = capture(model, (), inputs)
    small, plan = shrunk(gm, find_groups(gm), 0.5)
    assert small.get_parameter("lm_head.weight") is small.get_parameter("model.embed_tokens.weight")
    own = shrink_module(model, plan, small, (), inputs)
    assert own.lm_head.weight is own.model.embed_tokens.weight
    assert own.lm_head.weight.shape == (60, 16)
    assert own.model.layers[0].self_attn.k_proj.weight.shape == (8, 16)  # one of two key-value heads
    assert own.model.layers[0].self_attn.q_proj.weight.shape == (16, 16)  # with the two query heads it serves


def test_minilm_shrinks_to_another_bert() -> None:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 12, "intermediate_size": 96}
    model = hf("BertModel", "BertConfig", vocab_size=80, **sizes, **SPREAD)().double().eval()
    inputs = {"input_ids": torch.randint(80, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.int64)}
    gm = captured(model, (), inputs)
    groups = find_groups(gm)
    small, plan = shrunk(gm, groups, 0.5)
    assert error_against_original(gm, small, (), inputs) < 1e-12
    own = shrink_module(model, plan, small, (), inputs)
    assert own.encoder.layer[0].attention.self.query.out_features == 24
    assert own.encoder.layer[2].intermediate.dense.out_features == 48
