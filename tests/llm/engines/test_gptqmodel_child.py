"""The module that runs GPTQModel, asked as its parent asks it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.gptqmodel import GPTQMODEL, ask
from tests.llm.formats.test_compressed_tensors import quantized


@pytest.mark.skipif(bool(missing_modules(GPTQMODEL)), reason="gptqmodel is not installed")
def test_it_writes_a_file_for_each_layer_and_one_of_distributions(tmp_path: Path) -> None:
    model = quantized()
    model.export(tmp_path / "out", "gptq")
    (tmp_path / "answer").mkdir()
    ask(tmp_path / "out", tmp_path / "answer", torch.tensor([3, 4, 5]))
    found = {file.stem for file in (tmp_path / "answer").iterdir()}
    assert found == {name.removesuffix(".weight") for name in model.weights} | {"log_probabilities"}
    rows = load_file(tmp_path / "answer" / "log_probabilities.safetensors")["found"]
    assert rows.shape == (3, 96) and torch.allclose(rows.exp().sum(-1), torch.ones(3).double())
