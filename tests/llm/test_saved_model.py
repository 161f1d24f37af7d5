"""Language models saved and loaded: the same numbers, the same ties, and nothing believed unchecked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sparsebit import llm
from sparsebit.errors import SparsebitError
from tests.llm.models import DECODERS, tokens


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, name: str) -> None:
    config = {"W": {"BIT": 4, "SCHEME": "affine"}, "HEAD": {"BIT": 8}, "METHOD": "rtn"}
    model = llm.quantize(DECODERS[name](), None, config, progress=False)
    model.save(tmp_path / "saved")
    loaded = llm.LanguageModel.load(tmp_path / "saved")
    ids = tokens(16)[None]
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.records == model.records and loaded.ignored == model.ignored
    assert loaded.nbytes == model.nbytes


def test_ties_of_float_and_of_packed_weights_stay(tmp_path: Path) -> None:
    for index, head in enumerate((0, 4)):
        float_model = DECODERS["llama"]()
        float_model.config.tie_word_embeddings = True
        float_model.tie_weights()
        model = llm.quantize(float_model, None, {"HEAD": {"BIT": head}, "METHOD": "rtn"}, progress=False)
        model.save(tmp_path / str(index))
        loaded = llm.LanguageModel.load(tmp_path / str(index))
        assert loaded.nbytes == model.nbytes
        generated = loaded.model.generate(tokens(4)[None], max_new_tokens=4, do_sample=False)
        assert generated.shape[1] <= 8


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    model = llm.quantize(DECODERS["llama"](), None, {"METHOD": "rtn"}, progress=False)
    model.save(tmp_path / "saved")
    with pytest.raises(SparsebitError, match="the model has no 'model"):
        llm.LanguageModel.load(tmp_path / "saved", DECODERS["gpt2"]())
    with pytest.raises(SparsebitError):
        llm.LanguageModel.load(tmp_path)
