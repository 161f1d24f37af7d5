"""A folder for OpenVINO: openvino_model.xml with packed weights, config.json and the tokenizer.

``openvino.Core().compile_model`` runs it. ``openvino_genai.LLMPipeline`` also needs the converted tokenizer, which
the package openvino_tokenizers makes.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from sparsebit.llm.decoder.describe import describe_decoder
from sparsebit.llm.engines.engine import Engine
from sparsebit.llm.engines.openvino import GRAPH, OPENVINO
from sparsebit.llm.formats.decoder_folder import DecoderFolder
from sparsebit.llm.formats.format import FORMATS
from sparsebit.llm.formats.openvino_graph import OpenVinoGraph
from sparsebit.llm.language_model import LanguageModel
from sparsebit.runtime.packages import require


@FORMATS.register("openvino")
class OpenVinoFolder(DecoderFolder):
    """A folder whose graph OpenVINO compiles, keys and values kept by the model."""

    name: ClassVar[str] = "openvino"
    head_step: ClassVar[int] = 1
    half_scales: ClassVar[bool] = True
    byte_points: ClassVar[bool] = True
    engine: ClassVar[Engine] = OPENVINO

    def write(self, model: LanguageModel, path: Path, ids: Tensor) -> None:
        """The graph with its weights beside it, the config and the tokenizer."""
        graph = OpenVinoGraph(describe_decoder(model.model, self.name), model.weights)
        _save(graph.model(), path / GRAPH)
        module: Any = model.model
        module.config.save_pretrained(path)
        if model.tokenizer is None:
            return
        model.save_tokenizer(path)
        if importlib.util.find_spec("openvino_tokenizers"):
            from openvino_tokenizers import convert_tokenizer

            for name, made in zip(
                ("tokenizer", "detokenizer"),
                convert_tokenizer(model.tokenizer, with_detokenizer=True),
                strict=True,
            ):
                _save(made, path / f"openvino_{name}.xml")


def _save(model: Any, path: Path) -> None:
    """Write a graph without changing its numbers; failures of the system raise ``OSError``."""
    try:
        require("openvino").save_model(model, path, compress_to_fp16=False)
    except RuntimeError as error:
        raise OSError(str(error)) from None
