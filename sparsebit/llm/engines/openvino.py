"""OpenVINO on a CPU, in float32: by default it also rounds to bfloat16 and 8 bits on processors that support it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebit.llm.engines.engine import Engine, prompt_and_steps
from sparsebit.llm.engines.rounding import Rounding

GRAPH = "openvino_model.xml"
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "KV_CACHE_PRECISION": "f32",
}


class OpenVinoModel:
    """A graph that the engine has compiled."""

    longest: int | None = None

    def __init__(self, path: Path) -> None:
        import openvino

        self._openvino: Any = openvino
        self._core = openvino.Core()
        self._model = self._core.read_model(path / GRAPH)
        self._compiled = self._core.compile_model(self._model, "CPU", EXACT)
        # The table of a product is its second input, that of the embedding its first.
        self._tables = {
            op.get_friendly_name(): op.input_value(1 if op.get_type_name() == "MatMul" else 0)
            for op in self._model.get_ordered_ops()
            if op.get_type_name() in ("MatMul", "Gather")
        }

    def weight(self, name: str) -> Tensor:
        """Unpacked by the engine itself."""
        table = self._tables[name.removesuffix(".weight")]
        alone = self._openvino.Model([self._openvino.opset13.result(table)], [], "weight")
        return torch.from_numpy(np.array(self._core.compile_model(alone, "CPU", EXACT)([])[0], np.float32))

    def rounding(self, name: str) -> Rounding | None:
        """None: it is compiled in float32 for the proof."""
        return None

    def log_probabilities(self, ids: Tensor) -> Tensor:
        """After a prompt, then after one id at a time with the model's cached keys and values."""
        request = self._compiled.create_infer_request()
        found, past = [], 0
        for part in prompt_and_steps(ids):
            total = past + len(part)
            inputs = {
                "input_ids": part[None].numpy(),
                "attention_mask": np.ones((1, total), np.int64),
                "position_ids": np.arange(past, total)[None],
                "beam_idx": np.zeros(1, np.int32),
            }
            found.append(torch.from_numpy(np.array(request.infer(inputs)["logits"]))[0])
            past = total
        return torch.cat(found).double().log_softmax(-1)


# It multiplies in float32 here, so its predictions are those of torch.
OPENVINO = Engine("OpenVINO", ("openvino",), 1e-4, OpenVinoModel)
