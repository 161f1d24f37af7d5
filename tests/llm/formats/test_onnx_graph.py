"""The graph for ONNX Runtime GenAI: its inputs and outputs, and one node for each product."""

from __future__ import annotations

from collections import Counter

import pytest

from sparsebit import llm
from sparsebit.llm.decoder.describe import describe_decoder
from tests.llm.decoder.family_models import family_model
from tests.llm.formats.test_compressed_tensors import quantized

pytest.importorskip("onnx_ir")


def test_a_layer_is_one_attention_and_its_products() -> None:
    from sparsebit.llm.formats.onnx_graph import OnnxGraph

    model = quantized()
    levels = {name.removesuffix(".weight"): 0 for name in model.weights}
    layers = model.model.config.num_hidden_layers
    graph = OnnxGraph(describe_decoder(model.model, "onnxruntime-genai"), model.weights, levels).model().graph
    kinds = Counter(node.op_type for node in graph)
    assert kinds["GroupQueryAttention"] == layers
    written = "+".join(node.name or "" for node in graph if node.op_type == "MatMulNBits").split("+")
    assert {f"{name}.weight" for name in written} == set(model.weights)
    cache = {f"past_key_values.{index}.{part}" for index in range(layers) for part in ("key", "value")}
    assert {value.name for value in graph.inputs} == {"input_ids", "attention_mask"} | cache
    assert {value.name for value in graph.outputs} == {"logits"} | {
        name.replace("past_key_values", "present") for name in cache
    }


def test_a_tied_table_is_in_the_file_once() -> None:
    from sparsebit.llm.formats.onnx_graph import OnnxGraph

    # The table is float.
    model = llm.quantize(family_model("gemma2"), None, {"METHOD": "rtn"}, progress=False)
    graph = OnnxGraph(describe_decoder(model.model, "a"), model.weights, {}).model().graph
    shapes = [tuple(value.shape or ()) for value in graph.initializers.values()]
    assert shapes.count((96, 64)) == 1 and (64, 96) not in shapes


def test_matrices_that_hold_all_heads_are_one_product_each() -> None:
    from sparsebit.llm.formats.onnx_graph import OnnxGraph

    for name in ("phi3, window", "gpt_neox", "falcon, new"):
        model = llm.quantize(family_model(name), None, {"METHOD": "rtn"}, progress=False)
        graph = OnnxGraph(describe_decoder(model.model, "a"), model.weights, {}).model().graph
        products = [node.name for node in graph if node.op_type == "MatMulNBits"]
        assert {f"{name}.weight" for name in products} == set(model.weights)
