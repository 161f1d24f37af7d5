"""Language models saved and loaded: the same numbers, the same ties, and nothing believed unchecked."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from sparsebit import llm
from sparsebit.errors import ArtifactError, SparsebitError
from tests.llm.models import DECODERS, tokens
from tests.storage.artifacts import edit_file, edit_manifest, file_of


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sparsebit.llm.source.LARGE", 256
    )  # as of a large model: no tensor is there before it is read
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
    with pytest.raises(SparsebitError, match="the model has no tensor 'model"):
        llm.LanguageModel.load(tmp_path / "saved", DECODERS["gpt2"]())
    with pytest.raises(SparsebitError):
        llm.LanguageModel.load(tmp_path)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llm") / "saved"
    llm.quantize(DECODERS["llama"](), None, {"METHOD": "rtn"}, progress=False).save(folder)
    return folder


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda content: content["matrices"][1]["shape"].__setitem__(1, 10**30), "bits does not fit"),
        (lambda content: content["matrices"][1]["shape"].__setitem__(0, 3), "bits does not fit"),
        (
            lambda content: content["matrices"][1].update(name="model.layers"),
            "this is not a packed tensor",
        ),
        (lambda content: content["config"].update(num_hidden_layers=2**31), "cannot build the saved model"),
        (lambda content: content["config"].update(intermediate_size=8), "does not fit the model"),
    ],
)
def test_a_description_that_does_not_fit_is_refused_before_memory_is_asked_for(
    tmp_path: Path, saved: Path, edit: Callable[[Any], object], message: str
) -> None:
    shutil.copytree(saved, tmp_path / "edited")
    edit_manifest(tmp_path / "edited", lambda manifest: edit(manifest["content"]))
    with pytest.raises(SparsebitError, match=message):
        llm.LanguageModel.load(tmp_path / "edited")


def test_float_tensors_of_another_type_are_refused(tmp_path: Path, saved: Path) -> None:
    shutil.copytree(saved, tmp_path / "edited")
    tensors = load_file(file_of(saved, "floats"))
    tensors["lm_head.weight"] = tensors["lm_head.weight"].long()
    edit_file(tmp_path / "edited", "floats", save(tensors))
    with pytest.raises(ArtifactError, match=r"'lm_head.weight' has another type[\s\S]*got: +torch.int64"):
        llm.LanguageModel.load(tmp_path / "edited")
