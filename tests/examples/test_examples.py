"""Every example runs on tiny data, as a script of its folder would."""

from __future__ import annotations

import csv
import importlib
import json
import runpy
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
import torch

from tests.ranks import run_script

FOLDER = Path(__file__).parents[2] / "examples"
Run = Callable[..., dict[str, float]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls ``main`` of an example in an empty folder, with its own folder first on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(tmp_path))

    def call(name: str, *words: object) -> dict[str, float]:
        found: dict[str, float] = importlib.import_module(name).main([str(word) for word in words])
        return found

    return call


@pytest.fixture
def cifar10(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Images of two kinds, dark and bright, and weights that were not trained."""
    monkeypatch.syspath_prepend(str(FOLDER))
    random = numpy.random.default_rng(0)
    for part, count in (("calib", 8), ("test", 20), ("train10k", 20)):
        labels = random.integers(0, 2, count)
        pixels = random.integers(0, 100, (count, 32, 32, 3)) + 100 * labels[:, None, None, None]
        numpy.savez(
            tmp_path / f"cifar10_{part}.npz",
            images=pixels.astype(numpy.uint8),
            labels=labels.astype(numpy.uint8),
        )
    torch.manual_seed(0)
    torch.save(importlib.import_module("cifar10").ResNet().state_dict(), tmp_path / "cifar10_resnet20.pt")
    return tmp_path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of four pictures, and a module with a model for them."""
    image = pytest.importorskip("PIL.Image")
    random = numpy.random.default_rng(0)
    for label in ("cat", "dog"):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for index in range(4):
            pixels = random.integers(0, 255, (40, 48, 3)).astype(numpy.uint8)
            image.fromarray(pixels).save(tmp_path / "photos" / label / f"{index}.png")
    (tmp_path / "my_nets.py").write_text(
        "from torch import nn\n"
        "def tiny():\n"
        "    return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, 2),\n"
        "                         nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))\n"
    )
    return tmp_path / "photos"


def test_cifar10_ptq(run: Run, cifar10: Path) -> None:
    found = run("cifar10_ptq", "--data", cifar10, "--steps", 2, "--onnx", "resnet.onnx", "--device", "cpu")
    assert list(found) == ["float", "nearest", "brecq"]
    assert (cifar10 / "resnet.onnx").is_file()


def test_cifar10_qat(run: Run, cifar10: Path) -> None:
    found = run("cifar10_qat", "--data", cifar10, "--epochs", 1, "--save", "trained", "--device", "cpu")
    assert list(found) == ["float", "calibrated", "trained"]
    assert (cifar10 / "trained").is_dir()


def test_cifar10_structured(run: Run, cifar10: Path) -> None:
    found = run("cifar10_structured", "--data", cifar10, "--epochs", 1, "--device", "cpu")
    assert 0.1 < found["parameters"] < 0.8


def test_cifar10_unstructured(run: Run, cifar10: Path) -> None:
    found = run("cifar10_unstructured", "--data", cifar10, "--epochs", 2, "--device", "cpu")
    assert found["zeros"] == pytest.approx(0.8, abs=0.02)


def test_imagenet_ptq(run: Run, photos: Path) -> None:
    found = run(
        "imagenet_ptq", "--model", "my_nets:tiny", "--data", photos, "--size", 32, "--onnx", "net.onnx"
    )
    assert list(found) == ["float", "int8"]
    assert (photos.parent / "net.onnx").is_file()


def test_imagenet_qat_on_two_processes(photos: Path) -> None:
    """As ``torchrun`` starts it."""
    words = ["--model", "my_nets:tiny", "--data", str(photos), "--test", str(photos), "--size", "32"]
    words += ["--batch", "2", "--epochs", "1", "--save", "trained"]
    printed = run_script(
        [str(FOLDER / "imagenet_qat.py"), *words], 2, photos.parent, path=[FOLDER, photos.parent]
    )
    assert "trained" in printed
    assert (photos.parent / "trained").is_dir()


def test_detection(run: Run, photos: Path) -> None:
    found = run("detection", "--data", photos, "--size", 64)
    assert found["found again"] > 0.5


def test_segmentation(run: Run, photos: Path) -> None:
    found = run("segmentation", "--data", photos, "--size", 32)
    assert found["same"] > 0.8


def test_sentence_encoder(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    nouns = ["cat", "dog", "house", "tree", "river", "stone"]
    with open(tmp_path / "pairs.csv", "w", newline="") as file:
        rows = [(f"a {a} is here", f"the {b} is there", float(a == b)) for a in nouns for b in nouns]
        csv.writer(file).writerows(rows)
    found = run("sentence_encoder", "--data", tmp_path / "pairs.csv")
    assert abs(found["float"] - found["int8"]) < 0.2


def test_gpt_perplexity(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 200)
    found = run("gpt_perplexity", "--data", tmp_path / "text.txt", "--length", 32, "--rows", 8, "--steps", 30)
    assert found["int8"] == pytest.approx(found["float"], rel=0.05)


def test_llm_gptq(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    found = run("llm_gptq", "--output", tmp_path / "quantized")
    assert found["bits"] < 6
    assert found["divergence"] < 0.1


def test_torch_compile(run: Run) -> None:
    assert (
        run("torch_compile", "--backend", "aot_eager", "--device", "cpu", "--calls", 1)["difference"] < 1e-5
    )


def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((FOLDER / "get_started.ipynb").read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (tmp_path / "cells.py").write_text("\n\n".join(cells), encoding="utf-8")
    names = runpy.run_path(str(tmp_path / "cells.py"))
    assert names["right"] > 580
    assert all(not cell.get("outputs") for cell in notebook["cells"]), "clear the outputs before committing"


def test_every_example_is_listed_and_tested() -> None:
    files = {path.name for path in FOLDER.iterdir() if path.suffix in {".py", ".ipynb"}}
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert [name for name in files if f"`{name}`" not in page] == []
    tested = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in files if Path(name).stem not in tested and name != "pictures.py"] == []


def test_qlora_alone_and_as_a_pipeline_of_two(run: Run, tmp_path: Path) -> None:
    alone = run("qlora", "--steps", 3, "--out", "alone")
    words = [str(FOLDER / "qlora.py"), "--steps", "3", "--pipeline", "--out", "two"]
    assert f"loss {alone['first']:.3f} -> {alone['last']:.3f}" in run_script(words, 2, tmp_path)
    assert (tmp_path / "two" / "adapter_config.json").is_file()
