"""The script that runs GPTQModel, asked as its parent asks it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from sparsebit.llm.engines.engine import missing_modules
from sparsebit.llm.engines.gptqmodel import GPTQMODEL, ask
from tests.llm.formats.test_compressed_tensors import quantized


@pytest.mark.skipif(bool(missing_modules(GPTQMODEL)), reason="gptqmodel is not installed")
def test_it_writes_a_file_for_each_layer_or_one_of_distributions(tmp_path: Path) -> None:
    model = quantized()
    model.export(tmp_path / "out", "gptq")
    for place in ("layers", "predictions"):
        (tmp_path / place).mkdir()
    ask(tmp_path / "out", tmp_path / "layers")
    found = {file.stem for file in (tmp_path / "layers").iterdir()}
    assert found == {name.removesuffix(".weight") for name in model.weights}
    ask(tmp_path / "out", tmp_path / "predictions", ids=[3, 4, 5])
    rows = load_file(tmp_path / "predictions" / "log_probabilities.safetensors")["found"]
    assert rows.shape == (3, 96) and torch.allclose(rows.exp().sum(-1), torch.ones(3).double())
