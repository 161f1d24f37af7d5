"""Nothing that is loaded may run code: every loader of the package is listed here, and tried with a hostile file."""

from __future__ import annotations

import ast
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sparsebit import QuantModel
from sparsebit.cli.data import read_npz
from sparsebit.cli.model import read_weights
from sparsebit.config.engine.yaml_file import read_yaml
from sparsebit.errors import SparsebitError
from sparsebit.recipes.recipe import Recipe
from tests.storage.artifacts import edit_manifest

ROOT = Path(__file__).resolve().parent.parent

# Calls that read data, or turn text into objects. Each place is safe for the reason beside it.
ALLOWED = {
    ("cli", "onnx.load"): "a protobuf, external data not followed",
    ("cli", "np.load"): "allow_pickle=False",
    ("cli", "Image.open"): "pixels, within Pillow's limit on sizes",
    ("cli", "torch.load"): "weights_only=True",
    ("cli", "load_file"): "safetensors",
    ("cli", "importlib.import_module"): "code that the user names on the command line, or a constant",
    ("cli", "json.loads"): "our own text",
    ("cli", "entry.load"): "one of our own commands, by a constant",
    ("compat", "importlib.import_module"): "constants of our own table",
    ("compat", "onnx.load"): "a protobuf, external data not followed",
    ("llm", "load_file"): "safetensors",
    ("demo", "load"): "safetensors, from the package",
    ("config", "yaml.load"): "a SafeLoader",
    ("config", "ast.literal_eval"): "literals only",
    ("graph", "ast.literal_eval"): "literals in our own tables",
    ("export", "onnx.load_from_string"): "what torch just wrote",
    ("export", "onnx.load"): "a protobuf",
    ("runtime", "importlib.import_module"): "constants",
    ("runtime", "json.loads"): "messages of our own child process, texts and numbers",
    ("runtime", "onnx.load"): "a protobuf, external data not followed",
    ("integrations", "importlib.import_module"): "constants",
    ("__init__", "importlib.import_module"): "constants",
    ("quantization", "load_file"): "safetensors of this process",
    ("storage", "json.loads"): "checked field by field",
    ("recipes", "json.loads"): "checked field by field",
    ("analysis", "load"): "our own opener of a runtime session",
    ("sparse", "load"): "our own, over storage",
    ("export", "require('onnx').load"): "a protobuf",
    ("export", "require('onnx_ir').load"): "a protobuf",
    ("export", "self.ir.load"): "a protobuf, the file that was just written",
    ("llm", "ir.load"): "a protobuf, the file that was just written",
    ("llm", "json.load"): "numbers and texts from our own parent process",
    (
        "llm",
        "json.loads",
    ): "an index of tensor names, a tokenizer, or what our own process wrote; types are checked",
    ("llm", "load"): "our own, of a folder that export has just written",
    (
        "llm",
        "GPTQModel.load",
    ): "safetensors, of a folder that export has just written, in a process of its own",
    ("cli", "llm.LanguageModel.load"): "our own, over storage",
    ("kernels", "tl.load"): "reads memory inside a kernel",
    ("kernels", "gl.load"): "reads memory inside a kernel",
}
SUSPECTS = {
    *("__import__", "import_module", "literal_eval", "treespec_loads", "loads"),
    *(
        "load",
        "load_file",
        "safe_load",
        "full_load",
        "unsafe_load",
        "load_all",
        "load_from_string",
        "load_model",
    ),
    *("Unpickler", "fromstring", "fromfile", "memmap", "load_url", "load_state_dict_from_url", "run_path"),
}
BARE = {"eval", "exec", "compile"}  # as methods they are something else: model.eval, re.compile
TILES = {"tile", "word_tiles", "scale_tiles", "zero_tiles"}  # of shared memory, in a kernel
# Names of our own that only look like loaders.
OWN = {"QuantModel.load", "SparseModel.load", "load_model"}


def calls_of(path: Path) -> Iterator[str]:
    """The suspicious calls in a file, as they are spelled."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            last = name.rpartition(".")[2]
            if name.endswith(".load") and name.split(".")[0] in TILES:
                continue
            if (last in SUSPECTS and name not in OWN) or name == "Image.open" or name == "pickle.loads":
                yield name


def test_every_loader_of_the_package_is_known() -> None:
    places = {
        (path.relative_to(ROOT / "sparsebit").parts[0].removesuffix(".py"), name)
        for path in sorted((ROOT / "sparsebit").rglob("*.py"))
        for name in calls_of(path)
    }
    unknown = places - ALLOWED.keys()
    assert not unknown, "add each to ALLOWED with the reason why it cannot run code, and a hostile file below"


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that leaves a file behind when anything imports it, and the path of that file."""
    sprung = tmp_path / "sprung"
    (tmp_path / "trapmodule.py").write_text(f"open({str(sprung)!r}, 'w').close()\nX = {{'y': []}}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield sprung
    sys.modules.pop("trapmodule", None)
    assert not sprung.exists(), "a file that was loaded ran code"


class _Trap:
    def __init__(self, sprung: Path) -> None:
        self.sprung = sprung

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.sprung,))


@pytest.mark.parametrize("legacy", [True, False])
def test_weights_that_are_a_program(trap: Path, tmp_path: Path, legacy: bool) -> None:
    torch.save({"w": _Trap(trap)}, tmp_path / "w.pt", _use_new_zipfile_serialization=not legacy)
    (tmp_path / "raw.pt").write_bytes(pickle.dumps(_Trap(trap)))
    (tmp_path / "w.safetensors").write_bytes(pickle.dumps(_Trap(trap)))
    for name in ("w.pt", "raw.pt", "w.safetensors"):
        with pytest.raises(SparsebitError):
            read_weights(tmp_path / name)


def test_arrays_that_are_a_program(trap: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.array([_Trap(trap)], dtype=object))
    with pytest.raises(SparsebitError, match="cannot be read"):
        read_npz(tmp_path / "x.npz", 4)
    stream = io.BytesIO()
    np.save(stream, np.zeros(2))
    header = stream.getvalue().replace(b"'<f8'", b"__import__('trapmodule')"[:5])
    with zipfile.ZipFile(tmp_path / "h.npz", "w") as file:
        file.writestr("x.npy", header)
    with pytest.raises(SparsebitError):
        read_npz(tmp_path / "h.npz", 4)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:importlib.import_module [trapmodule]",
        "!!python/module:trapmodule",
        "W: !!python/name:trapmodule.X",
        "QUANTIZE: !!python/object/new:trapmodule.X {}",
    ],
)
def test_yaml_that_names_code(trap: Path, text: str) -> None:
    with pytest.raises(SparsebitError):
        read_yaml(text, "c.yaml")
    with pytest.raises(SparsebitError):
        Recipe.from_yaml(text)


@pytest.mark.parametrize(
    "example",
    [
        {"leaves": [None], "structure": "STRUCTURE"},
        {"call": {"__enum__": True, "fqn": "trapmodule:X", "name": "y"}},
        {"call": {"tuple": [{"trapmodule:X": []}, {"dict": []}]}},
        {"call": {"tuple": [{"tuple": [{"tensor": {"__reduce__": "trapmodule"}}]}, {"dict": []}]}},
    ],
)
def test_a_saved_model_that_names_code(trap: Path, tmp_path: Path, example: dict[str, object]) -> None:
    x, model = torch.randn(4, 8), nn.Sequential(nn.Linear(8, 8)).eval()
    qmodel = QuantModel(model, "int8_onnxruntime", example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.save(tmp_path / "dl")
    if "structure" in example:  # torch's own encoding, which imports what it names
        import torch.utils._pytree as pytree

        spec = json.loads(pytree.treespec_dumps(pytree.tree_structure(((x,), {}))))
        spec[1]["children_spec"][1]["context"] = json.dumps(
            {"__enum__": True, "fqn": "trapmodule:X", "name": "y"}
        )
        example = {"leaves": [None], "structure": json.dumps(spec)}
    edit_manifest(tmp_path / "dl", lambda manifest: manifest["content"].update(example=example))
    with pytest.raises(SparsebitError):
        QuantModel.load(tmp_path / "dl", model)
