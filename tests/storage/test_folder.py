"""Folders that are complete, or refused: replaced in one step, never half-written, checked field by field."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sparsebit.storage import MANIFEST, ArtifactError, folder, read_folder, require_place, write_folder
from tests.forks import Program, run_programs
from tests.storage.artifacts import edit_file, edit_manifest, file_of, tensor_files
from tests.storage.processes import Other

CONTENT = {"text": "ü", "list": [1, 2.5, None, True], "nested": {"b": {}, "a": 1}}
TENSORS = {"state": {"w": torch.arange(6.0).view(2, 3), "e": torch.empty(0)}, "more": {}}


def write(place: Path, **changes: Any) -> None:
    arguments: dict[str, Any] = {"kind": "thing", "version": 2, "content": CONTENT, "tensors": TENSORS}
    write_folder(place, **(arguments | changes))


def content_of(place: Path) -> dict[str, Any]:
    return read_folder(place, "thing", 2)[0].data


def test_a_round_trip_gives_everything_back(tmp_path: Path) -> None:
    place = tmp_path / "new" / "deep"
    write(place)
    content, tensors = read_folder(place, "thing", 2)
    assert content.data == CONTENT and set(tensors) == {"state", "more"} and tensors["more"] == {}
    assert list(content.data["nested"]) == ["b", "a"], "the order of keys is kept"
    assert torch.equal(tensors["state"]["w"], TENSORS["state"]["w"]) and tensors["state"]["e"].shape == (0,)


def test_files_are_json_and_safetensors_with_ordinary_modes(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    write(tmp_path / "it")
    assert {path.suffix for path in (tmp_path / "it").iterdir()} == {".json", ".safetensors"}
    assert torch.equal(load_file(file_of(tmp_path / "it", "state"))["w"], TENSORS["state"]["w"])
    (tmp_path / "plain").write_text("")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in [tmp_path / "plain", *(tmp_path / "it").iterdir()]}
    assert len(modes) == 1, "the modes that the umask gives"


def test_saving_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name)
    one, two = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert one == two


def test_large_groups_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "SHARD", 40)
    group = {str(i): torch.full((4,), float(i)) for i in range(5)} | {"large": torch.ones(99)}
    write(tmp_path / "it", tensors={"state": group})
    assert len(list(tensor_files(tmp_path / "it"))) == 4
    found = read_folder(tmp_path / "it", "thing", 2)[1]["state"]
    assert list(found) == list(group) and all(torch.equal(found[name], group[name]) for name in group)


def test_an_artifact_is_replaced_and_the_users_files_stay(tmp_path: Path) -> None:
    place = tmp_path / "it"
    write(place)
    (place / "optimizer.pt").write_text("mine")
    (place / "notes").mkdir()
    write(place, content={"second": 2}, tensors={"other": {"w": torch.ones(1)}})
    assert content_of(place) == {"second": 2}
    names = {path.name for path in place.iterdir()}
    assert names == {MANIFEST, file_of(place, "other").name, "optimizer.pt", "notes"}
    assert os.listdir(tmp_path) == ["it"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "latest").symlink_to("real")
    for number in range(2):
        write(tmp_path / "latest", content={"n": number})
        assert content_of(tmp_path / "real") == {"n": number}
    assert (tmp_path / "latest").is_symlink() and set(os.listdir(tmp_path)) == {"real", "latest"}


def test_other_peoples_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    for name in ("mine", "file"):
        with pytest.raises(ArtifactError, match=r"contains other files|is a file"):
            write(tmp_path / name)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "precious" and len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("at", ["write_tensors", "write_text", "_sync"])
def test_a_full_disk_is_told_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, existing: bool
) -> None:
    place = tmp_path / "it"
    if existing:
        write(place)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(folder, at, full)
        with pytest.raises(
            ArtifactError, match=r"cannot write(.|\n)*No space left(.|\n)*nothing was changed"
        ):
            write(place, content={"second": 2}, tensors={"state": {"w": torch.ones(3)}})
    if existing:
        assert content_of(place) == CONTENT and len(list(place.iterdir())) == 2
    else:
        assert os.listdir(tmp_path) == []


def test_room_is_asked_for_before_the_work(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"it needs 1152922 TB, and .* are free"):
        require_place(tmp_path / "it", 2**60)


def test_what_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "it")
    for bad in (object(), float("nan")):
        with pytest.raises(ArtifactError, match="thing cannot be saved"):
            write(tmp_path / "it", content={"bad": bad})
    assert content_of(tmp_path / "it") == CONTENT and len(list((tmp_path / "it").iterdir())) == 2


def test_long_names_are_refused_before_the_work_or_written(tmp_path: Path) -> None:
    write(tmp_path / ("n" * 255))
    assert content_of(tmp_path / ("n" * 255)) == CONTENT
    with pytest.raises(ArtifactError, match=r"longer than 255 bytes"):
        require_place(tmp_path / ("n" * 256))


# A process that kills itself at the n-th call of a function of the operating system.
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from sparsebit.storage import write_folder
place, at = Path(sys.argv[1]), int(sys.argv[2])
calls = 0
def counted(real):
    def call(*args, **options):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **options)
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return call
for name in ("replace", "fsync", "unlink", "open", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
write_folder(place, "thing", 2, {"new": True}, {"state": {"w": torch.ones(3)}, "b": {"w": torch.ones(4)}})
"""


@pytest.mark.parametrize("at", [4, 10, 13, 15, 18])
def test_a_killed_save_leaves_the_old_or_the_new_artifact(tmp_path: Path, at: int) -> None:
    place = tmp_path / "it"
    write(place)
    (code,), printed = run_programs([Program(["-c", KILLED, str(place), str(at)])], tmp_path)
    assert code in (0, -signal.SIGKILL), printed
    assert content_of(place) in (CONTENT, {"new": True})
    write(place)
    assert content_of(place) == CONTENT and len(list(place.iterdir())) == 2, "the next save cleans up"


def test_a_killed_first_save_is_not_in_the_way(tmp_path: Path) -> None:
    place = tmp_path / "it"
    codes, _ = run_programs([Program(["-c", KILLED, str(place), "9"])], tmp_path)
    assert codes == [-signal.SIGKILL] and place.is_dir()
    with pytest.raises(ArtifactError, match="is not a saved model"):
        read_folder(place, "thing", 2)
    write(place)
    assert content_of(place) == CONTENT and len(list(place.iterdir())) == 2


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", '{"kind": "thing"}', '{"version": "2"}', "\ud800", "1e999", "NaN"),
        *('{"kind": "thing", "version": ' + "9" * 5000 + "}", "[" * 100_000, '{"a": "\\ud800"}'),
        *(
            '{"kind": "thing", "version": true}',
            '{"kind": "thing", "version": -1}',
            '{"kind": [], "version": 2}',
        ),
    ],
)
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    write(tmp_path / "it")
    (tmp_path / "it" / MANIFEST).write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(ArtifactError, match="save the model again"):
        read_folder(tmp_path / "it", "thing", 2)


def test_what_is_not_there_or_of_another_kind_or_version(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"loaded from a folder(.|\n)*an int"):
        read_folder(3, "thing", 2)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match=r"is not a saved model(.|\n)*a folder with sparsebit.json"):
        read_folder(tmp_path / "nowhere", "thing", 2)
    (tmp_path / "net.onnx").touch()
    with pytest.raises(ArtifactError, match=r"is not a saved model(.|\n)*got: *a file"):
        read_folder(tmp_path / "net.onnx", "thing", 2)
    write(tmp_path / "it")
    with pytest.raises(ArtifactError, match=r"another kind(.|\n)*toy(.|\n)*thing"):
        read_folder(tmp_path / "it", "toy", 2)
    with pytest.raises(ArtifactError, match=r"a newer sparsebit(.|\n)*format 1(.|\n)*upgrade"):
        read_folder(tmp_path / "it", "thing", 1)
    with pytest.raises(ArtifactError, match=r"an older sparsebit(.|\n)*format 3(.|\n)*save the model again"):
        read_folder(tmp_path / "it", "thing", 3)
    file_of(tmp_path / "it", "state").unlink()
    with pytest.raises(ArtifactError, match=r"state-.*.safetensors is missing(.|\n)*complete folder"):
        read_folder(tmp_path / "it", "thing", 2)


@pytest.mark.parametrize("change", [{"kind": "thing", "extra": 1}, {"groups": {}}, {"content": {}}])
def test_any_edit_of_the_manifest_shows(tmp_path: Path, change: dict[str, object]) -> None:
    write(tmp_path / "it")
    path = tmp_path / "it" / MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ArtifactError, match="changed after it was saved"):
        read_folder(tmp_path / "it", "thing", 2)


def named(name: object) -> Callable[[dict[str, Any]], None]:
    def edit(manifest: dict[str, Any]) -> None:
        manifest["groups"]["state"][0]["file"] = name

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        *map(
            named, ("../it/x.safetensors", "/etc/passwd", "a\0b", "", 3, None, "state.safetensors", "é" * 300)
        ),
        *(lambda m, value=value: m["groups"].update(state=value) for value in (1, [1], [{}], {"a": 1})),
        *(
            lambda m, value=value: m["groups"]["state"][0].update(bytes=value)
            for value in (-1, 2**80, "1", True)
        ),
        *(lambda m, value=value: m.update(groups=value) for value in (None, [], 3)),
        *(lambda m, value=value: m.update(content=value) for value in (None, [], 3)),
        lambda m: m["groups"]["state"][0].update(digest=7),
    ],
)
def test_any_field_of_any_type_is_our_error(tmp_path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    write(tmp_path / "it")
    edit_manifest(tmp_path / "it", edit)
    with pytest.raises(ArtifactError):
        read_folder(tmp_path / "it", "thing", 2)


@pytest.mark.parametrize("name", [MANIFEST, "state"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_what_is_not_a_file_is_refused_without_waiting(tmp_path: Path, name: str, kind: str) -> None:
    write(tmp_path / "it")
    path = tmp_path / "it" / name if name == MANIFEST else file_of(tmp_path / "it", name)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(ArtifactError, match=r"cannot be read: (not a file|it is a folder)"):
        read_folder(tmp_path / "it", "thing", 2)


def test_a_file_with_right_digests_and_wrong_content(tmp_path: Path) -> None:
    write(tmp_path / "it")
    edit_file(tmp_path / "it", "state", b"\xff" * 64)
    with pytest.raises(ArtifactError, match=r"state.* is damaged: the length of its header"):
        read_folder(tmp_path / "it", "thing", 2)


SAVING = """
import sys
import torch
from sparsebit.storage import folder
real = folder.write_text
def wait(*arguments):
    print("ready", flush=True)
    sys.stdin.readline()
    return real(*arguments)
folder.write_text = wait
folder.write_folder(sys.argv[1], "thing", 2, {"by": "the other"}, {"state": {"w": torch.ones(3)}})
"""


@pytest.mark.parametrize("before", [False, True])
def test_two_processes_save_to_one_folder(tmp_path: Path, before: bool) -> None:
    place = tmp_path / "it"
    if before:
        write(place)
    other = Other(SAVING, place)  # its tensors are written, its manifest is not
    write(place, content={"by": "us"})
    content, tensors = read_folder(place, "thing", 2)
    assert content.data == {"by": "us"} and torch.equal(tensors["state"]["w"], TENSORS["state"]["w"])
    other.finish()
    content, tensors = read_folder(place, "thing", 2)
    assert content.data == {"by": "the other"} and torch.equal(tensors["state"]["w"], torch.ones(3))
    assert len(list(place.iterdir())) == 2, "the manifest and one file of tensors"
