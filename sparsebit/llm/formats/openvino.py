"""A folder for OpenVINO: model.onnx, which its CPU plugin runs with the weights packed, config.json and the tokenizer.

The graph is that of ONNX Runtime GenAI, except that rows of a quantized embedding are unpacked by plain operators:
OpenVINO reads ``MatMulNBits`` and ``GroupQueryAttention``, but not ``GatherBlockQuantized``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.openvino import OpenVino
from sparsebit.llm.formats.accuracy_level import IN_FLOAT
from sparsebit.llm.formats.format import FORMATS, Refusal, layers_of
from sparsebit.llm.formats.onnxruntime_genai import GRAPH, refuse_by_layer
from sparsebit.llm.language_model import LanguageModel


@FORMATS.register("openvino")
class OpenVinoFolder:
    """A folder whose graph ``openvino.Core().read_model`` reads."""

    extension: ClassVar[str] = ""
    engine: ClassVar[Engine | None] = OpenVino()

    def refusals(self, model: LanguageModel) -> Iterator[Refusal]:
        """Layers that the decoder graph cannot hold."""
        return refuse_by_layer(model, "openvino")

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """The graph with its weights beside it, the config and the tokenizer."""
        import onnx_ir as ir

        from sparsebit.llm.formats.decoder_graph import DecoderGraph

        levels = {name: IN_FLOAT for name, _ in layers_of(model)}  # OpenVINO decides by its own settings
        made = DecoderGraph(model.model, model.weights, levels, gathers_blocks=False).model()
        ir.save(made, path / GRAPH, external_data=f"{GRAPH}.data")
        module: Any = model.model
        module.config.save_pretrained(path)
        if model.tokenizer is not None:
            model.tokenizer.save_pretrained(path)
