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
from tests.llm.models import DECODERS, tokenizer, tokens
from tests.storage.artifacts import edit_file, edit_manifest, file_of


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_what_is_loaded_is_what_was_saved(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # As of a large model: no tensor is there before it is read.
    monkeypatch.setattr("sparsebit.llm.folders.source.LARGE", 256)
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
        (lambda content: content["config"].update(attn_implementation="a/b"), "names code that transformers"),
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


def test_the_tokenizer_is_replaced_together_with_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(with_tokenizer: bool) -> llm.LanguageModel:
        given = tokenizer() if with_tokenizer else None
        return llm.quantize(DECODERS["llama"](), None, {"METHOD": "rtn"}, tokenizer=given, progress=False)

    made(True).save(tmp_path / "saved")
    loaded = llm.LanguageModel.load(tmp_path / "saved")
    assert loaded.tokenizer("the thing")["input_ids"] == made(True).tokenizer("the thing")["input_ids"]
    assert {path.suffix for path in (tmp_path / "saved").iterdir()} == {".json", ".safetensors"}
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr("sparsebit.storage.folder.write_text", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made(False).save(tmp_path / "saved")
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before
    made(False).save(tmp_path / "saved")
    assert llm.LanguageModel.load(tmp_path / "saved").tokenizer is None


@pytest.mark.parametrize("name", ["../evil.py", "/tmp/evil", ".hidden", "a/b/c", "", "a\\b"])
def test_a_tokenizer_file_stays_inside_its_folder(tmp_path: Path, name: str) -> None:
    model = llm.quantize(DECODERS["llama"](), None, {"METHOD": "rtn"}, tokenizer=tokenizer(), progress=False)
    model.save(tmp_path / "saved")
    files = load_file(file_of(tmp_path / "saved", "tokenizer"))
    files[name] = torch.zeros(3, dtype=torch.uint8)
    edit_file(tmp_path / "saved", "tokenizer", save(files))
    with pytest.raises(ArtifactError, match="is not a file of a tokenizer"):
        llm.LanguageModel.load(tmp_path / "saved")
    assert not (tmp_path / "evil.py").exists()
