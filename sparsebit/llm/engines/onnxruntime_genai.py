"""ONNX Runtime GenAI; the bytes of the graph are read by the package onnx_ir."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsebit.llm.engines.engine import Engine, prompt_and_steps
from sparsebit.llm.engines.rounding import Rounding


class GenAIModel:
    """A folder that the engine has loaded."""

    def __init__(self, path: Path) -> None:
        import onnx_ir as ir
        import onnxruntime_genai

        self._genai: Any = onnxruntime_genai
        self._engine: Any = onnxruntime_genai.Model(str(path))
        self._where: dict[str, tuple[Any, slice]] = {}
        for node in ir.load(path / "model.onnx").graph:
            if node.op_type == "GatherBlockQuantized":
                self._where[node.name or ""] = node, slice(None)
            elif node.op_type == "MatMulNBits" and "rows" in node.metadata_props:  # a file of ours
                ends = np.cumsum([0, *json.loads(node.metadata_props["rows"])])
                for index, name in enumerate((node.name or "").split("+")):
                    self._where[name] = node, slice(int(ends[index]), int(ends[index + 1]))

    def weight(self, name: str) -> Tensor:
        """Unpacked by the rule of the operators, (q - zero point) * scale."""
        node, rows = self._where[name.removesuffix(".weight")]
        gathers = node.op_type == "GatherBlockQuantized"
        values, scales = (self._array(node.inputs[place]) for place in ((0, 2) if gathers else (1, 2)))
        stored = node.inputs[3] if len(node.inputs) > 3 else None
        bits = node.attributes["bits"].as_int()
        count = scales.shape[1]
        points: Any = 2 ** (bits - 1)
        if stored is not None:
            points = _unpacked(self._array(stored), bits)[:, :count, None]
        steps = _unpacked(values.reshape(len(scales), -1), bits).reshape(len(scales), count, -1) - points
        numbers = (steps.astype(np.float32) * scales[..., None]).reshape(len(scales), -1)
        if "groups" in node.metadata_props:  # queries, keys and values stand group by group in the original
            groups, *parts = json.loads(node.metadata_props["groups"])
            apart = np.split(numbers, np.cumsum(parts)[:2] * groups)
            numbers = np.concatenate([part.reshape(groups, -1, part.shape[1]) for part in apart], 1)
            numbers = numbers.reshape(len(scales), -1)
        return torch.from_numpy(numbers[rows])

    def rounding(self, name: str) -> Rounding | None:
        """In the blocks of the weight, at accuracy level 4."""
        attributes = self._where[name.removesuffix(".weight")][0].attributes
        if "accuracy_level" not in attributes or attributes["accuracy_level"].as_int() != 4:
            return None
        return Rounding(attributes["block_size"].as_int(), torch.float32)

    def log_probabilities(self, ids: Tensor) -> Tensor:
        """Of a prompt, and then of one id after the other."""
        settings = self._genai.GeneratorParams(self._engine)
        settings.set_search_options(max_length=len(ids) + 1)
        generator = self._genai.Generator(self._engine, settings)
        found = []
        for part in prompt_and_steps(ids):
            generator.append_tokens(part[None].numpy().astype(np.int32))
            found.append(torch.from_numpy(np.array(generator.get_output("logits")))[0])
        return torch.cat(found).double().log_softmax(-1)

    def _array(self, value: Any) -> np.ndarray[Any, Any]:
        producer = value.producer()  # a table that is shared with the head is reshaped first
        found = value if producer is None else producer.inputs[0]
        array: np.ndarray[Any, Any] = found.const_value.numpy()
        return array


def _unpacked(packed: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Values from the lowest bits of each byte on, along the last axis."""
    shifts = np.arange(0, 8, bits)
    values = (packed[..., None].astype(np.int32) >> shifts) & (2**bits - 1)
    unpacked: np.ndarray[Any, Any] = values.reshape(*packed.shape[:-1], -1)
    return unpacked


# It rounds activations to 8 bits in front of products at accuracy level 4.
ONNXRUNTIME_GENAI = Engine("ONNX Runtime GenAI", ("onnxruntime_genai", "onnx_ir"), 1e-3, GenAIModel)
