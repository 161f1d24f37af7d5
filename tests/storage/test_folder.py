"""Folders that are whole, or refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsebit.storage import MANIFEST, ArtifactError, read_folder, write_folder

CONTENT = {"text": "ü", "list": [1, 2.5, None, True], "nested": {"a": {}}}
TENSORS = {"state": {"w": torch.arange(6.0).view(2, 3), "e": torch.empty(0)}, "more": {}}


def write(place: Path, **changes: Any) -> None:
    arguments: dict[str, Any] = {"kind": "thing", "version": 2, "content": CONTENT, "tensors": TENSORS}
    write_folder(place, **(arguments | changes))


def test_a_round_trip_gives_everything_back(tmp_path: Path) -> None:
    place = tmp_path / "new" / "deep"
    write(place)
    content, tensors = read_folder(place, "thing", 2)
    assert content == CONTENT and set(tensors) == {"state", "more"} and tensors["more"] == {}
    assert torch.equal(tensors["state"]["w"], TENSORS["state"]["w"]) and tensors["state"]["e"].shape == (0,)
    assert read_folder(place, "thing", 3)[0] == CONTENT, "an older format is read"


def test_only_json_and_safetensors_are_written(tmp_path: Path) -> None:
    write(tmp_path / "it")
    assert {path.suffix for path in (tmp_path / "it").iterdir()} == {".json", ".safetensors"}
    json.loads((tmp_path / "it" / MANIFEST).read_text(encoding="utf-8"))


def test_an_artifact_is_replaced_whole_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "it"
    write(place)
    write(place, content={"second": 2}, tensors={"other": {"w": torch.ones(1)}})
    assert read_folder(place, "thing", 2)[0] == {"second": 2}
    assert {path.name for path in place.iterdir()} == {MANIFEST, "other.safetensors"}
    assert os.listdir(tmp_path) == ["it"]


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "it").mkdir()
    write(tmp_path / "it")
    read_folder(tmp_path / "it", "thing", 2)


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("mine", "file"):
        with pytest.raises(ArtifactError, match=r"holds something else|is a file"):
            write(tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "precious" and len(os.listdir(tmp_path)) == 2


def test_a_failure_half_way_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "it"
    write(place)
    with pytest.raises(TypeError):
        write(place, content={"bad": object()})
    assert read_folder(place, "thing", 2)[0] == CONTENT and os.listdir(tmp_path) == ["it"]

    rename, made = os.rename, []

    def fail_on_the_second(source: Any, target: Any) -> None:
        made.append(source)
        if len(made) == 2:
            raise OSError(28, "No space left on device")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fail_on_the_second)
    with pytest.raises(ArtifactError, match=r"No space left(.|\n)*nothing was changed"):
        write(place, content={"second": 2})
    monkeypatch.undo()
    assert read_folder(place, "thing", 2)[0] == CONTENT and os.listdir(tmp_path) == ["it"]


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match="cannot write"):
        write(tmp_path / "file" / "below")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"kind": "thing"}', '{"version": "2"}', "\ud800"])
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    write(tmp_path / "it")
    (tmp_path / "it" / MANIFEST).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ArtifactError, match="save the model again"):
        read_folder(tmp_path / "it", "thing", 2)


def test_what_is_not_there_or_of_another_kind_or_newer(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no saved model"):
        read_folder(tmp_path / "nowhere", "thing", 2)
    write(tmp_path / "it")
    with pytest.raises(ArtifactError, match=r"another kind(.|\n)*toy(.|\n)*thing"):
        read_folder(tmp_path / "it", "toy", 2)
    with pytest.raises(ArtifactError, match=r"newer sparsebit(.|\n)*format 1(.|\n)*upgrade"):
        read_folder(tmp_path / "it", "thing", 1)
    (tmp_path / "it" / "state.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"state.safetensors is missing(.|\n)*whole folder"):
        read_folder(tmp_path / "it", "thing", 2)


@pytest.mark.parametrize("key", ["kind", "version", "files", "content"])
def test_any_edit_of_the_manifest_shows(tmp_path: Path, key: str) -> None:
    write(tmp_path / "it")
    path = tmp_path / "it" / MANIFEST
    manifest = json.loads(path.read_text())
    manifest[key] = {"kind": "thing", "version": 1, "files": {}, "content": {}}[key]
    if key == "kind":
        manifest["extra"] = 1
    path.write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="changed after it was saved"):
        read_folder(tmp_path / "it", "thing", 2)


def test_a_file_elsewhere_cannot_be_named(tmp_path: Path) -> None:
    """A name with a path in it is looked for in the folder itself."""
    from sparsebit.storage.folder import _canonical, _digest

    write(tmp_path / "it")
    write(tmp_path / "other")
    path = tmp_path / "it" / MANIFEST
    manifest = json.loads(path.read_text())
    manifest.pop("digest")
    digest = manifest["files"].pop("more.safetensors")
    manifest["files"]["../other/secret.safetensors"] = digest
    path.write_text(json.dumps(manifest | {"digest": _digest(_canonical(manifest))}))
    (tmp_path / "other" / "secret.safetensors").write_bytes(
        (tmp_path / "other" / "more.safetensors").read_bytes()
    )
    with pytest.raises(ArtifactError, match="missing"):
        read_folder(tmp_path / "it", "thing", 2)
