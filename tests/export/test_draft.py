"""A model takes its place in one step; what a killed process left is removed."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import onnx_ir
import pytest

from sparsebit.errors import ArtifactError
from sparsebit.export.draft import ModelDraft
from sparsebit.runtime.onnx_file import weight_files


def model(value: float) -> Any:
    """One addition of a large constant."""
    numbers = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [4096], [value] * 4096)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4096]) for name in "xy"]
    node = onnx.helper.make_node("Add", ["x", "w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", ends[:1], ends[1:], [numbers])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    return onnx_ir.serde.deserialize_model(made)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_weights_of_the_old_model_stay_until_the_new_one_has_taken_its_place(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    for value, weights in ((1.0, "net.onnx.data"), (2.0, "net.onnx.2.data"), (3.0, "net.onnx.data")):
        with ModelDraft(path) as draft:
            draft.write(model(value), external=True)
            before = names(tmp_path)
            files = draft.publish()
        assert [file.name for file in files] == ["net.onnx", weights] == [path.name, *weight_files(path)]
        assert names(tmp_path) == sorted(["net.onnx", weights]), before
        assert onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])[0] == value
    with ModelDraft(path) as draft:
        draft.write(model(4.0))
        assert draft.publish() == (path,)
    assert names(tmp_path) == ["net.onnx"]


def test_weights_of_a_model_that_was_renamed_stay(tmp_path: Path) -> None:
    with ModelDraft(tmp_path / "net.onnx") as draft:
        draft.write(model(1.0), external=True)
        draft.publish()
    (tmp_path / "net.onnx").rename(tmp_path / "old.onnx")
    for value, external, weights in ((2.0, False, []), (3.0, True, ["net.onnx.2.data"])):
        with ModelDraft(tmp_path / "net.onnx") as draft:
            draft.write(model(value), external=external)
            assert [file.name for file in draft.publish()] == ["net.onnx", *weights]
        for name, number in (("old.onnx", 1.0), ("net.onnx", value)):
            assert onnx.numpy_helper.to_array(onnx.load(tmp_path / name).graph.initializer[0])[0] == number


def test_a_stop_between_the_files_leaves_the_old_model_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "net.onnx"
    with ModelDraft(path) as draft:
        draft.write(model(1.0), external=True)
        draft.publish()
    replaced: list[str] = []

    def replace(source: Path, place: Path) -> None:
        if Path(place) == path:
            raise KeyboardInterrupt
        replaced.append(Path(place).name)
        Path(source).rename(place)

    monkeypatch.setattr("os.replace", replace)
    with pytest.raises(KeyboardInterrupt), ModelDraft(path) as draft:
        draft.write(model(2.0), external=True)
        draft.publish()
    assert "net.onnx.2.data" in replaced
    assert onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])[0] == 1.0


def test_what_a_killed_process_left_is_removed_and_a_live_one_is_left_alone(tmp_path: Path) -> None:
    dead = tmp_path / ".sparsebit-0123456789abcdef.draft"
    dead.mkdir()
    (dead / "net.onnx").write_text("half")
    with ModelDraft(tmp_path / "a.onnx") as live:
        live.file.write_text("half")
        with ModelDraft(tmp_path / "b.onnx"):
            assert not dead.exists() and live.file.exists()
    assert names(tmp_path) == []


def test_a_full_disk_is_told_and_the_old_model_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "net.onnx"
    place.write_bytes(b"old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with (
            pytest.raises(ArtifactError, match=r"net\.onnx: No space left on device"),
            ModelDraft(place) as draft,
        ):
            draft.write(model(1.0))
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", full)
        with pytest.raises(ArtifactError, match="No space left"), ModelDraft(place) as draft:
            draft.write(model(1.0))
            draft.publish()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", full)
        with pytest.raises(ArtifactError, match="No space left"), ModelDraft(place):
            pass
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
        with (
            pytest.raises(ArtifactError, match=r"it needs 16\.4 kB, and 100 B are free"),
            ModelDraft(place) as draft,
        ):
            draft.write(model(1.0))
    assert place.read_bytes() == b"old" and names(tmp_path) == ["net.onnx"]
