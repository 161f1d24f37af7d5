"""ONNX Runtime GenAI; the bytes of the graph are read by the package onnx_ir."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sparsebit.llm.engines.engine import Engine, prompt_and_steps
from sparsebit.llm.engines.rounding import Rounding


class _Place(NamedTuple):
    """The position of a matrix in the graph."""

    node: Any
    inputs: tuple[int, int, int]  # of the node: values, scales and zero points
    rows: slice = slice(None)
    pairs: bool = False  # rows of two matrices alternate


class GenAIModel:
    """A folder that the engine has loaded."""

    longest: int | None = None

    def __init__(self, path: Path) -> None:
        import onnx_ir as ir
        import onnxruntime_genai

        self._genai: Any = onnxruntime_genai
        self._engine: Any = onnxruntime_genai.Model(str(path))
        self._where: dict[str, _Place] = {}
        for node in ir.load(path / "model.onnx").graph:
            names = (node.name or "").split("+")
            if node.op_type == "GatherBlockQuantized":
                self._where[names[0]] = _Place(node, (0, 2, 3))
            elif node.op_type == "MatMulNBits" and "rows" in node.metadata_props:  # written by sparsebit
                ends = np.cumsum([0, *json.loads(node.metadata_props["rows"])])
                for index, name in enumerate(names):
                    self._where[name] = _Place(node, (1, 2, 3), slice(int(ends[index]), int(ends[index + 1])))
            elif node.op_type == "QMoE":
                self._where[names[0]] = _Place(node, (2, 3, 11), pairs=True)
                self._where[names[1]] = _Place(node, (5, 6, 12))

    def weight(self, name: str) -> Tensor:
        """Unpacked as the operators do: (q - zero point) * scale."""
        layer, expert = self._layer(name)
        place = self._where[layer]
        node = place.node
        values, scales, points = (
            self._array(node.inputs[index]) if index < len(node.inputs) and node.inputs[index] else None
            for index in place.inputs
        )
        assert values is not None and scales is not None
        if expert:
            values, scales = values[int(expert)], scales[int(expert)]
            points = None if points is None else points[int(expert)]
        bits = node.attributes["expert_weight_bits" if expert else "bits"].as_int()
        count = scales.shape[1]
        zero: Any = 2 ** (bits - 1) if points is None else _unpacked(points, bits)[:, :count, None]
        steps = _unpacked(values.reshape(len(scales), -1), bits).reshape(len(scales), count, -1) - zero
        numbers = (steps.astype(np.float32) * scales[..., None]).reshape(len(scales), -1)
        if place.pairs:  # gate and up row by row; in the original all rows of the gate come first
            numbers = numbers.reshape(-1, 2, numbers.shape[1]).swapaxes(0, 1).reshape(len(scales), -1)
        if "groups" in node.metadata_props:  # queries, keys and values stand group by group in the original
            groups, *parts = json.loads(node.metadata_props["groups"])
            apart = np.split(numbers, np.cumsum(parts)[:2] * groups)
            numbers = np.concatenate([part.reshape(groups, -1, part.shape[1]) for part in apart], 1)
            numbers = numbers.reshape(len(scales), -1)
        return torch.from_numpy(numbers[place.rows])

    def _layer(self, name: str) -> tuple[str, str]:
        """The name in the graph, and the index in a stack of experts."""
        name = name.removesuffix(".weight")
        if name in self._where:
            return name, ""
        stack, _, expert = name.removesuffix("]").partition("[")
        return stack, expert

    def rounding(self, name: str) -> Rounding | None:
        """In the blocks of the weight, at accuracy level 4."""
        attributes = self._where[self._layer(name)[0]].node.attributes
        if "accuracy_level" not in attributes or attributes["accuracy_level"].as_int() != 4:
            return None
        return Rounding(attributes["block_size"].as_int(), torch.float32)

    def log_probabilities(self, ids: Tensor) -> Tensor:
        """After a prompt, then after one id at a time."""
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
    """Unpack values along the last axis, lowest bits of each byte first."""
    shifts = np.arange(0, 8, bits)
    values = (packed[..., None].astype(np.int32) >> shifts) & (2**bits - 1)
    unpacked: np.ndarray[Any, Any] = values.reshape(*packed.shape[:-1], -1)
    return unpacked


# It rounds activations to 8 bits in front of products at accuracy level 4.
ONNXRUNTIME_GENAI = Engine("ONNX Runtime GenAI", ("onnxruntime_genai", "onnx_ir"), 1e-3, GenAIModel)
