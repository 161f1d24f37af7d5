"""Folders for OpenVINO, read and run by it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import ArtifactError
from tests.llm.decoder.family_models import VARIANTS, family_model
from tests.llm.models import sharp, tokens

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
        (2, "full-range", 8, False),
        (3, "full-range", 0, False),
        (2, "full-range", 2, True),
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


@needs_engine
@pytest.mark.parametrize("name", VARIANTS)
def test_every_family(tmp_path: Path, name: str) -> None:
    """Weights bit for bit and logits, of a prompt and of steps after it, past the window where there is one."""
    made = llm.quantize(family_model(name), None, {"METHOD": "rtn"}, progress=False)
    report = made.export(tmp_path / "out", "openvino", ids=tokens(12))
    assert report.proven and report.weights == len(made.weights), str(report)
    assert abs(report.divergence or 0) < 1e-9, "all products are computed in float"


@needs_engine
def test_heads_of_any_size(tmp_path: Path) -> None:
    made = llm.quantize(family_model("gpt_neox", hidden_size=96), None, {"METHOD": "rtn"}, progress=False)
    assert made.export(tmp_path / "out", "openvino", ids=tokens(12)).proven


@needs_engine
def test_a_full_disk_is_our_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("basic_ios::clear: iostream error")

    monkeypatch.setattr("openvino.save_model", fail)
    made = llm.quantize(sharp("llama"), None, {"METHOD": "rtn"}, progress=False)
    with pytest.raises(ArtifactError, match=r"cannot write .*out: basic_ios::clear: iostream error"):
        made.export(tmp_path / "out", "openvino")
    assert not list(tmp_path.iterdir())
