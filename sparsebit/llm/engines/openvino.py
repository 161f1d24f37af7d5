"""OpenVINO on a CPU, in float32: by default it also rounds to bfloat16 and to 8 bits where the processor can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebit.llm.engines.rounding import Rounding

EXACT = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}


class OpenVino:
    """Multiplies in float32 here, so its predictions are those of torch."""

    name = "OpenVINO"
    modules = ("openvino", "onnx_ir")
    tolerance = 1e-4

    def open(self, path: Path) -> OpenVinoModel:
        """Read and compile the graph."""
        return OpenVinoModel(path)


class OpenVinoModel:
    """A graph that the engine has compiled."""

    def __init__(self, path: Path) -> None:
        import onnx_ir as ir
        import openvino

        self._openvino: Any = openvino
        self._core = openvino.Core()
        self._model = self._core.read_model(path / "model.onnx")
        self._compiled = self._core.compile_model(self._model, "CPU", EXACT)
        self._config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        self._rows: dict[
            str, tuple[str, slice]
        ] = {}  # the product of a layer by its output's name, and its rows
        for node in ir.load(path / "model.onnx").graph:
            if node.op_type == "MatMulNBits":
                ends = np.cumsum([0, *json.loads(node.metadata_props["rows"])])
                for index, name in enumerate((node.name or "").split("+")):
                    place = slice(int(ends[index]), int(ends[index + 1]))
                    self._rows[name] = str(node.outputs[0].name), place

    def weight(self, name: str) -> Tensor:
        """Unpacked by the engine itself: what it multiplies with, or the rows that it gives for all ids."""
        layer = name.removesuffix(".weight")
        if layer not in self._rows:
            return self._embedding()
        output, rows = self._rows[layer]
        product = next(
            op
            for op in self._model.get_ordered_ops()
            if op.get_type_name() == "MatMul" and output in _names(op)
        )
        source = product.input_value(1)
        alone = self._openvino.Model([self._openvino.opset13.result(source)], [], "weight")
        found = self._core.compile_model(alone, "CPU", EXACT)([])[0]
        turned = not product.get_attributes()["transpose_b"]
        return torch.from_numpy(np.array(found.T if turned else found, np.float32)[rows])

    def rounding(self, name: str) -> Rounding | None:
        """None: it is compiled in float32 for the proof."""
        return None

    def log_probabilities(self, ids: Tensor) -> Tensor:
        """One pass over all ids."""
        logits = torch.from_numpy(np.array(self._compiled(self._inputs(ids))["logits"][0]))
        return logits.double().log_softmax(-1)

    def _inputs(self, ids: Tensor) -> dict[str, Any]:
        config = self._config
        heads = config["num_attention_heads"]
        width = config.get("head_dim") or config["hidden_size"] // heads
        inputs: dict[str, Any] = {
            "input_ids": ids[None].numpy(),
            "attention_mask": np.ones((1, len(ids)), np.int64),
        }
        past = np.zeros((1, config.get("num_key_value_heads") or heads, 0, width), np.float32)
        for index in range(config["num_hidden_layers"]):
            inputs |= {f"past_key_values.{index}.{part}": past for part in ("key", "value")}
        return inputs

    def _embedding(self) -> Tensor:
        """The input of the first norm, for every id."""
        first = next(op for op in self._model.get_ordered_ops() if op.get_friendly_name() == EMBEDDED)
        ids = next(one for one in self._model.get_parameters() if "input_ids" in _names(one))
        alone = self._openvino.Model([self._openvino.opset13.result(first.output(0))], [ids], "embedding")
        every = np.arange(self._config["vocab_size"], dtype=np.int64)[None]
        return torch.from_numpy(np.array(self._core.compile_model(alone, "CPU", EXACT)([every])[0][0]))


EMBEDDED = "embedded"


def _names(op: Any) -> set[str]:
    names: set[str] = op.output(0).get_names() | {op.get_friendly_name()}
    return names
