"""What both folders with the graph of a decoder refuse, and how they store bits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.formats import FORMATS
from sparsebit.llm.formats.format import WeightKind
from sparsebit.numerics import CodeType
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import Plain

BOTH = pytest.mark.parametrize("format", ["onnxruntime-genai", "openvino"])


@BOTH
def test_what_it_cannot_hold_is_refused(format: str) -> None:
    with pytest.raises(SparsebitError, match="its blocks are 16 to 256 input channels") as caught:
        quantized(GROUP_SIZE=8).export("never", format)
    assert caught.value.expected == "GROUP_SIZE: 32"
    kind = WeightKind(CodeType("int", 5), 32, torch.float16, (64, 64))
    refusal = FORMATS[format]().refuse("a layer", kind)
    assert refusal is not None and refusal.reason == "it has no type for int5"


@BOTH
def test_models_that_are_not_of_transformers_are_refused(format: str) -> None:
    plain: nn.Module = Plain()
    made = llm.quantize(plain, None, {"METHOD": "rtn"}, progress=False)
    with pytest.raises(SparsebitError, match=f"{format} needs a transformers model"):
        made.export("never", format)
