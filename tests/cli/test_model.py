"""Weights: what fits, what does not, and that no file can run code."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from sparsebit.cli.command import UsageError
from sparsebit.cli.model import load_model
from sparsebit.errors import SparsebitError
from sparsebit.storage import archive


def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    model = load_model("net.py:Net")
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("form", ["safetensors", "pt", "nested", "parallel"])
def test_weights_come_in_several_forms(place: Path, form: str) -> None:
    wanted = state()
    if form == "safetensors":
        save_file(wanted, "w.safetensors")
    elif form == "nested":
        torch.save({"epoch": 3, "state_dict": wanted}, "w.pt")
    else:
        prefix = "module." if form == "parallel" else ""
        torch.save({prefix + name: tensor for name, tensor in wanted.items()}, "w.pt")
    model = load_model("net.py:make", "w.safetensors" if form == "safetensors" else "w.pt")
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.state_dict().items())


class Evil:
    def __reduce__(self) -> object:
        return os.mkdir, ("taken-over",)


def test_a_pickle_that_runs_code_is_refused(place: Path) -> None:
    with open("evil.pt", "wb") as file:
        pickle.dump(Evil(), file)
    with pytest.raises(UsageError, match="could run code"):
        load_model("net.py:make", "evil.pt")
    assert not (place / "taken-over").exists()


def test_weights_that_do_not_fit_are_refused(place: Path) -> None:
    save_file(state(), "w.safetensors")
    with pytest.raises(UsageError, match="a different shape"):
        load_model("net.py:wide", "w.safetensors")
    save_file({"other": torch.zeros(1)}, "other.safetensors")
    with pytest.raises(UsageError) as error:
        load_model("net.py:make", "other.safetensors")
    assert "missing: features.0.weight" in str(error.value) and "not in the model: other" in str(error.value)


@pytest.mark.parametrize("name", ["gone.pt", "short.safetensors", "text.pt", "list.pt"])
def test_files_that_are_no_weights_are_refused(place: Path, name: str) -> None:
    Path("short.safetensors").write_bytes(b"\x08\x00")
    Path("text.pt").write_text("hello")
    torch.save([1, 2], "list.pt")
    with pytest.raises(UsageError):
        load_model("net.py:make", name)


def test_complex_weights_are_refused(place: Path) -> None:
    complex_state = {name: tensor.to(torch.complex64) for name, tensor in state().items()}
    torch.save(complex_state, "w.pt")
    with pytest.raises(UsageError, match=r"would lose its imaginary part(.|\n)*complex64"):
        load_model("net.py:make", "w.pt")


def test_an_archive_that_would_fill_the_memory_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "_SMALL", 2**16)
    torch.save({"w": torch.zeros(2**18)}, "w.pt")
    with zipfile.ZipFile("w.pt") as old, zipfile.ZipFile("bomb.pt", "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, old.read(entry))
    with pytest.raises(SparsebitError, match=r"bomb.pt would grow"):
        load_model("net.py:make", "bomb.pt")
