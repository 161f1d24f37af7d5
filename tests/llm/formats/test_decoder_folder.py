"""What both folders with the graph of a decoder refuse, and how they store bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.formats import FORMATS
from sparsebit.llm.formats.format import WeightKind
from sparsebit.numerics import CodeType
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import DECODERS, Plain

BOTH = pytest.mark.parametrize("format", ["onnxruntime-genai", "openvino"])


@BOTH
def test_what_it_cannot_hold_is_refused(format: str) -> None:
    with pytest.raises(SparsebitError, match="its blocks are 16 to 256 input channels") as caught:
        quantized(GROUP_SIZE=8).export("never", format)
    assert caught.value.expected == "GROUP_SIZE: 32"
    kind = WeightKind(CodeType("int", 5), 32, torch.float16, (64, 64))
    refusal = FORMATS[format]().refuse("a layer", kind)
    assert refusal is not None and refusal.reason == "it has no type for int5"


def test_models_that_are_not_of_transformers_are_refused(tmp_path: Path) -> None:
    plain: Any = Plain()
    for config in (None, DECODERS["llama"]().config):  # also with a config of transformers
        plain.config = config
        made = llm.quantize(plain, None, {"METHOD": "rtn"}, progress=False)
        for format in FORMATS:
            with pytest.raises(SparsebitError, match=f"{format} needs a transformers model"):
                made.export("never", format)
        made.save(tmp_path / "saved")
        with pytest.raises(
            SparsebitError, match=r"pass the float model: LanguageModel.load\(folder, model\)"
        ):
            llm.LanguageModel.load(tmp_path / "saved")
