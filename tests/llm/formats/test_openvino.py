"""Folders for OpenVINO, read and run by it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import sharp

needs_engine = pytest.mark.skipif(
    importlib.util.find_spec("openvino") is None, reason="openvino is not installed"
)


@needs_engine
@pytest.mark.parametrize(
    ("bits", "scheme", "head", "tied"),
    [
        (4, "full-range", 4, True),
        (4, "affine", 8, False),
        (2, "affine", 2, True),
        (3, "full-range", 0, False),
    ],
)
def test_the_engine_runs_the_same_model(
    tmp_path: Path, bits: int, scheme: str, head: int, tied: bool
) -> None:
    model = sharp("llama")
    model.config.tie_word_embeddings = tied
    if tied:
        model.tie_weights()
    grid = {"SCHEME": scheme, "GROUP_SIZE": 32}
    config = {"METHOD": "rtn", "W": {"BIT": bits, **grid}, "HEAD": {"BIT": head, **grid}}
    made = llm.quantize(model, None, config, progress=False)
    report = made.export(tmp_path / "out", "openvino", ids=torch.arange(3, 9))
    assert report.proven and report.agreement == 1.0, str(report)


def test_what_it_cannot_hold_is_refused() -> None:
    with pytest.raises(SparsebitError, match="openvino folders are written for some architectures only"):
        quantized("gpt2").export("never", "openvino")
