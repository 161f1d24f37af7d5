"""The page of a quantized language model."""

from __future__ import annotations

import pytest

from sparsebit import llm
from sparsebit.report import render, report_language_model
from tests.llm.models import DECODERS


def test_losses_bits_and_engines_are_on_the_page() -> None:
    pytest.importorskip("jinja2")
    config = {"METHOD": "rtn", "W": {"BIT": 3, "SCHEME": "affine", "SPECIFIC": {"*.o_proj": {"BIT": 0}}}}
    model = llm.quantize(DECODERS["llama"](), None, config, progress=False)
    report = report_language_model(model, name="tiny")
    assert report.sentence.startswith(
        "18 weights of tiny were quantized to 3.59 bits each, including scales. "
    )
    (size,) = report.measures
    assert size.before / size.after == pytest.approx(32 / model.bits)
    assert report.layers[0].weight_bits == 3 and "groups of 32, 3.59 bits" in report.layers[0].op
    assert report.layers[0].sqnr_alone is not None and 5 < report.layers[0].sqnr_alone < 30
    assert (
        "Formats that store every weight exactly: compressed-tensors, onnxruntime-genai, openvino."
        in report.notes
    )
    assert any(note.startswith("gptq cannot store") for note in report.notes)
    page = render(report)
    assert "model.layers.0.mlp.up_proj.weight" in page and "BIT: 0" in page
    assert dict(report.in_float)["lm_head.weight"] == "HEAD.BIT: 0"
    assert "Distributions on the grids" not in page and "Config to reproduce it" not in page
    assert "input range" not in page and "cosine" not in page  # nothing was measured for these columns


def test_a_model_that_is_only_pruned_has_no_bits_and_no_formats() -> None:
    config = {"METHOD": "rtn", "W": {"BIT": 0, "SPARSITY": 0.5}}
    report = report_language_model(llm.quantize(DECODERS["llama"](), None, config, progress=False))
    assert report.sentence.startswith("21 weights of LlamaForCausalLM were pruned and stay in float. ")
    assert report.measures == () and len(report.notes) == 2 and report.layers[0].op == "float32"
    # Weights with the same remark share a note.
    assert report.notes[1] == "model.layers.0.self_attn.q_proj.weight and 20 more: 50% of it is zero."


def test_a_head_that_is_the_embedding_counts_once() -> None:
    model = DECODERS["llama"]()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    config = {"METHOD": "rtn", "W": {"BIT": 4}, "HEAD": {"BIT": 8}}
    made = llm.quantize(model, None, config, progress=False)
    count = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() == 2)
    report = report_language_model(made)
    assert report.measures[0].before == 4 * count and report.in_float == ()
    assert made.bits == pytest.approx(8 * report.measures[0].after / count)
    assert any(
        note.startswith("gptq ") and note.endswith(" It can with HEAD.BIT: 0.") for note in report.notes
    )
