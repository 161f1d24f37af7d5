"""What GPTQModel reads from a folder: layers unpacked, also in families that transformers cannot load."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.gptqmodel import GPTQMODEL, ask
from tests.llm.engines.reading import require_same_reading
from tests.llm.formats.test_compressed_tensors import quantized
from tests.llm.models import MORE_DECODERS, ROUTES

needs_engine = pytest.mark.skipif(bool(missing_modules(GPTQMODEL)), reason="gptqmodel is not installed")


@needs_engine
def test_weights_and_predictions_are_those_of_the_model(tmp_path: Path) -> None:
    opened = require_same_reading(GPTQMODEL, "gptq", tmp_path)
    assert opened.rounding("model.layers.0.mlp.up_proj.weight") is None, "it multiplies in float"
    with pytest.raises(SparsebitError, match="has loaded no packed layer 'lm_head'"):
        opened.weight("lm_head.weight")


@needs_engine
def test_three_bits_for_each_channel_are_read(tmp_path: Path) -> None:
    report = quantized(BIT=3, GROUP_SIZE=0).export(tmp_path / "out", "gptq")
    assert report.proven and report.divergence == 0, str(report)


@needs_engine
def test_layers_that_only_its_own_loader_reads(tmp_path: Path) -> None:
    experts = llm.quantize(
        MORE_DECODERS["qwen2_moe"](), None, {"METHOD": "rtn", "W": {"BIT": 4}}, progress=False
    )
    for name, small in (("conv1d", quantized("gpt2")), ("experts", experts)):
        report = small.export(tmp_path / name, "gptq")
        assert report.proven and report.weights == len(small.weights), str(report)


@needs_engine
@pytest.mark.parametrize("name", ["albert", "bart"])
def test_models_whose_blocks_are_elsewhere(name: str, tmp_path: Path) -> None:
    small = llm.quantize(ROUTES[name](), None, {"METHOD": "rtn", "W": {"BIT": 4}}, progress=False)
    assert small.export(tmp_path / "out", "gptq").proven


@needs_engine
def test_a_folder_that_it_cannot_load_is_an_error(tmp_path: Path) -> None:
    small = llm.quantize(ROUTES["t5"](), None, {"METHOD": "rtn"}, progress=False)
    report = small.export(tmp_path / "t5", "gptq")
    assert "transformers: " in report.failure and "its own loader: " in report.failure, str(report)
    with pytest.raises(SparsebitError, match="GPTQModel cannot run the file"):
        ask(tmp_path, tmp_path, torch.tensor([3]))


def test_the_engine_is_optional() -> None:
    assert set(missing_modules(GPTQMODEL)) <= {"gptqmodel"}
