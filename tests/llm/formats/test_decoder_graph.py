"""The graph for ONNX Runtime GenAI: its inputs and outputs, and one node for each product."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.llm.formats.test_compressed_tensors import quantized

pytest.importorskip("onnx_ir")


def test_a_layer_is_one_attention_and_its_products() -> None:
    from sparsebit.llm.formats.decoder_graph import DecoderGraph

    model = quantized()
    levels = {name.removesuffix(".weight"): 0 for name in model.weights}
    layers = model.model.config.num_hidden_layers
    graph = DecoderGraph(model.model, model.weights, levels).model().graph
    kinds = Counter(node.op_type for node in graph)
    assert kinds["GroupQueryAttention"] == layers
    written = "+".join(node.name or "" for node in graph if node.op_type == "MatMulNBits").split("+")
    assert {f"{name}.weight" for name in written} == set(model.weights)
    cache = {f"past_key_values.{index}.{part}" for index in range(layers) for part in ("key", "value")}
    assert {value.name for value in graph.inputs} == {"input_ids", "attention_mask"} | cache
    assert {value.name for value in graph.outputs} == {"logits"} | {
        name.replace("past_key_values", "present") for name in cache
    }
