"""Finished blocks in a folder: of the same model or refused, all of them or none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor

from sparsebit import llm
from sparsebit.errors import ArtifactError, SparsebitError
from tests.llm.models import DECODERS, tokens
from tests.storage.artifacts import edit_file, edit_manifest, file_of
from tests.storage.processes import held_by_another

CONFIG = {
    "W": {"BIT": 4, "GROUP_SIZE": 32},
    "METHOD": "rtn",
    "CALIBRATION": {"SAMPLES": 2, "LENGTH": 16},
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The blocks of a run that is over."""
    folder = tmp_path_factory.mktemp("finished")
    llm.quantize(DECODERS["llama"](), tokens(), CONFIG, folder=folder, progress=False)
    return folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """A copy of them."""
    return shutil.copytree(finished, tmp_path / "blocks")


def go_on(folder: Path, model: torch.nn.Module | None = None) -> llm.LanguageModel:
    return llm.quantize(model or DECODERS["llama"](), tokens(), CONFIG, folder=folder, progress=False)


@pytest.mark.parametrize(
    "part", ["layers.1.mlp.up_proj.weight", "embed_tokens.weight", "layers.0.input_layernorm.weight"]
)
def test_blocks_of_a_model_with_other_numbers_are_refused(folder: Path, part: str) -> None:
    model = DECODERS["llama"]()
    with torch.no_grad():
        next(p for name, p in model.named_parameters() if name.endswith(part)).view(-1)[-1] += 1
    with pytest.raises(SparsebitError, match=r"belongs to another run[\s\S]*the same model, data and config"):
        go_on(folder, model)


def edit(place: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], None]) -> None:
    """Change what a finished block says of its matrices, and its other parameters."""
    floats = load_file(file_of(place, "floats"))
    edit_manifest(place, lambda manifest: change(manifest["content"]["how"], floats))
    edit_file(place, "floats", save(floats))


def drop_how(how: dict[str, Any], floats: dict[str, Tensor]) -> None:
    how.pop(min(how))


def rename_how(how: dict[str, Any], floats: dict[str, Tensor]) -> None:
    how["elsewhere[x]"] = how.pop(min(how))


def drop_float(how: dict[str, Any], floats: dict[str, Tensor]) -> None:
    floats.pop(min(floats))


def cut_float(how: dict[str, Any], floats: dict[str, Tensor]) -> None:
    floats[min(floats)] = floats[min(floats)][1:].clone()


def spoil_float(how: dict[str, Any], floats: dict[str, Tensor]) -> None:
    floats[min(floats)] *= float("nan")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (drop_how, "is missing or occurs twice"),
        (rename_how, r"the block has no matrix 'elsewhere\[x\]'"),
        (drop_float, "is missing or occurs twice"),
        (cut_float, "has another shape or type"),
        (spoil_float, "holds NaN or infinite values"),
    ],
)
def test_a_block_that_does_not_fit_is_refused(folder: Path, change: Any, said: str) -> None:
    edit(folder / "block-0001", change)
    next_step = r"[\s\S]*next: +remove .*block-0001; that block is then computed again"
    with pytest.raises(ArtifactError, match=said + next_step):
        go_on(folder)
    shutil.rmtree(folder / "block-0001")
    go_on(folder)


def test_a_file_that_was_changed_is_told_in_the_same_words(folder: Path) -> None:
    file_of(folder / "block-0001", "floats").write_bytes(b"x")
    with pytest.raises(ArtifactError, match=r"next: +remove .*block-0001; that block is then computed again"):
        go_on(folder)


def test_a_second_run_in_the_same_folder_is_refused(folder: Path) -> None:
    with held_by_another(folder), pytest.raises(ArtifactError, match="another run is working in"):
        go_on(folder)


def test_blocks_that_fit_are_taken(folder: Path) -> None:
    edit(folder / "block-0001", lambda how, floats: None)
    shutil.rmtree(folder / "block-0000")
    (folder / "block-0000").mkdir()  # as of a process that was killed while it wrote the first file
    ids = tokens(16)[None]
    with torch.no_grad():
        resumed = go_on(folder).model(ids).logits
        whole = llm.quantize(DECODERS["llama"](), tokens(), CONFIG, progress=False).model(ids).logits
    assert torch.equal(resumed, whole)
