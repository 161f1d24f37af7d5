"""What happens when saved files are edited by someone who makes every digest right again?

Saved models (quantized, in training, pruned, shrunk), what stopped runs leave (a search, blocks of a reconstruction and
of a language model), a recipe, weights and arrays are changed at random, one edit at a time: values and types of JSON
fields, file names, tensors, bytes. Each is then loaded. Right is an error of ours or a loaded model; wrong is any other
exception, or more than ``--seconds`` for one case. The result is added to those in the file of results.

Run from the repository root: ``python -m benchmarks.robustness.tamper --cases 1000 --seed 0``
"""

from __future__ import annotations

import argparse
import collections
import copy
import hashlib
import json
import random
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save
from torch import nn

from benchmarks.environment import add_run, describe
from sparsebit import QuantModel, SparseModel
from sparsebit.cli.data import read_npz
from sparsebit.cli.model import fill
from sparsebit.config import load_qconfig
from sparsebit.errors import SparsebitError
from sparsebit.llm import LanguageModel
from sparsebit.llm.lora import add_lora, load_lora, save_lora
from sparsebit.recipes import Recipe, compress
from sparsebit.sparse import load as load_pruned
from sparsebit.sparse import save as save_pruned
from sparsebit.storage.json_text import canonical

RESULTS = Path(__file__).parent / "results"
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**64, 10**30, 0.5, -0.0, 1e300, "", "x", "../x", "/etc/passwd"),
    *("a\0b", "é" * 300, [], {}, [[]], [1], {"a": 1}, "int8", "weight", "0", [None], {"": ""}, "inf", "nan"),
)


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3),
        nn.ReLU(),
        nn.Flatten(),
    )
    return nn.Sequential(*layers, nn.Linear(16 * 16, 4)).eval()


def images() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def quantized() -> QuantModel:
    qmodel = QuantModel(net(), "int8_onnxruntime", example_inputs=(images(),))
    qmodel.calibrate([images()], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    return qmodel


RECOVERY = {"brecq": {"steps": 1}}


def reconstructed(folder: Path) -> None:
    """Calibrate and rebuild block by block, from what is in the folder already."""
    config = load_qconfig("w4a8").to_dict()
    config["SCHEDULE"]["RECOVERY"] = [RECOVERY]
    QuantModel(net(), config, example_inputs=(images(),)).calibrate([images()], folder=folder, progress=False)


def language_model(folder: Path | None = None) -> LanguageModel:
    """A small one; with a folder, from the finished blocks that are there."""
    import transformers

    from sparsebit import llm

    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=50, max_position_embeddings=64, **small)
    method = {"W": {"BIT": 4, "GROUP_SIZE": 32}, "METHOD": "rtn"}
    model = transformers.LlamaForCausalLM(config).eval()
    return llm.quantize(model, None, method, folder=folder, progress=False)


def make_artifacts(root: Path) -> dict[str, Callable[[Path], object]]:
    """Write one artifact of each kind; returns how each is loaded."""
    quantized().save(root / "quantized")
    quantized().save(root / "floats", floats=True)
    training = quantized()
    training.init_QAT(distill=0.5)
    training.save(root / "training")
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5}}
    smodel = SparseModel(net(), config, example_inputs=(images(),))
    smodel.calc_params()
    smodel.save(root / "session")
    save_pruned(smodel.shrink(), root / "shrunk")
    data = [(images(), net()(images()).argmax(1))]
    search = {"size": 0.4, "max_drop": 1.0, "progress": False}
    compress(net(), data, folder=root / "search", **search)
    small = language_model()
    small.save(root / "language")
    add_lora(small, rank=4)
    save_lora(small, root / "adapters")
    language_model(root / "blocks")
    reconstructed(root / "reconstruction")
    (root / "recipe").mkdir()
    (root / "recipe" / "recipe.yaml").write_text(Recipe(quantize=load_qconfig("w4a8"), seed=3).to_yaml())
    (root / "weights").mkdir()
    torch.save(net().state_dict(), root / "weights" / "w.pt")
    (root / "safe").mkdir()
    (root / "safe" / "w.safetensors").write_bytes(save({k: v.clone() for k, v in net().state_dict().items()}))
    (root / "arrays").mkdir()
    np.savez(root / "arrays" / "x.npz", x=images().numpy(), y=np.arange(4))

    def run(model: Any) -> None:
        with torch.no_grad():
            model.eval()(images())

    return {
        "quantized": lambda place: run(QuantModel.load(place, net())),
        "floats": lambda place: run(QuantModel.load(place, net())),
        "training": lambda place: run(QuantModel.load(place, net())),
        "session": lambda place: run(load_pruned(place, net())),
        "shrunk": lambda place: run(load_pruned(place, net())),
        "language": lambda place: LanguageModel.load(place)(torch.arange(8)[None]),
        "adapters": lambda place: load_lora(language_model(), place),
        "blocks": language_model,
        "reconstruction": reconstructed,
        "search": lambda place: compress(net(), data, folder=place, **search),
        "recipe": lambda place: Recipe.read(place / "recipe.yaml"),
        "weights": lambda place: fill(net(), str(place / "w.pt")),
        "safe": lambda place: fill(net(), str(place / "w.safetensors")),
        "arrays": lambda place: read_npz(place / "x.npz", 2),
    }


def edit(place: Path, chance: random.Random) -> str:
    """One random edit of one file of an artifact; returns what was done."""
    file = chance.choice(sorted(path for path in place.rglob("*") if path.is_file()))
    if file.suffix == ".json" and chance.random() < 0.85:
        return edit_json(file, chance)
    if file.suffix == ".safetensors" and file.parent.name != "safe" and chance.random() < 0.6:
        return edit_tensors(file, chance)
    data = bytearray(file.read_bytes())
    at = chance.randrange(max(1, len(data)))
    kind = chance.choice(("flip", "cut", "insert", "repeat"))
    if kind == "flip":
        data[at] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del data[at : at + chance.choice((1, 8, 1000))]
    elif kind == "insert":
        data[at:at] = chance.randbytes(chance.choice((1, 8)))
    else:
        data[at:at] = data[at : at + 64]
    file.write_bytes(data)
    redo_digests(file.parent)
    return f"{file.name}: {kind} at {at}"


def edit_json(file: Path, chance: random.Random) -> str:
    data = json.loads(file.read_text())
    path, holder, key = chance.choice(list(_fields(data)))
    kind = chance.choice(("odd", "odd", "odd", "delete", "copy", "add", "deep"))
    if kind == "odd":
        holder[key] = copy.deepcopy(chance.choice(ODD))
    elif kind == "delete":
        del holder[key]
    elif kind == "copy":
        holder[key] = copy.deepcopy(chance.choice(list(_fields(data)))[1])
    elif kind == "add" and isinstance(holder, dict):
        holder["unknown"] = chance.choice(ODD)
    else:
        for _ in range(chance.choice((5, 90, 300))):
            holder[key] = [holder[key]]
    data.pop("digest", None)
    file.write_text(json.dumps(data | {"digest": hashlib.sha256(canonical(data)).hexdigest()}))
    return f"{file.name}: {kind} at {path}"


def _fields(data: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        yield f"{path}/{key}", data, key
        yield from _fields(value, f"{path}/{key}")


def edit_tensors(file: Path, chance: random.Random) -> str:
    tensors = load_file(file)
    if not tensors:
        return "nothing"
    name = chance.choice(sorted(tensors))
    tensor = tensors[name]
    changes: dict[str, Callable[[], torch.Tensor]] = {
        "nan": lambda: tensor * float("nan"),
        "infinite": lambda: tensor * float("inf"),
        "zero": lambda: tensor * 0,
        "negative": lambda: tensor.to(torch.float32) * -1,
        "double": lambda: tensor.double(),
        "integers": lambda: tensor.to(torch.int64),
        "empty": lambda: tensor.flatten()[:0],
        "longer": lambda: torch.cat([tensor.flatten(), tensor.flatten()]),
        "deeper": lambda: tensor[None],
    }
    kind = chance.choice([*changes, "delete", "rename"])
    try:
        if kind in changes:
            tensors[name] = changes[kind]()
        elif kind == "rename":
            tensors["unknown"] = tensors.pop(name)
        else:
            del tensors[name]
    except RuntimeError:
        return "nothing"
    file.write_bytes(save(tensors))
    redo_digests(file.parent)
    return f"{file.name}: {kind} of {name}"


def redo_digests(place: Path) -> None:
    """Sizes and digests of a saved folder as its files are now."""
    manifest = place / "sparsebit.json"
    try:
        data = json.loads(manifest.read_text())
        for entries in data["groups"].values():
            for entry in entries:
                written = (place / entry["file"]).read_bytes()
                entry["bytes"], entry["digest"] = len(written), hashlib.sha256(written).hexdigest()
        data.pop("digest", None)
        manifest.write_text(json.dumps(data | {"digest": hashlib.sha256(canonical(data)).hexdigest()}))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return


class TooLong(BaseException):
    """One case took longer than it may."""


def _stop(*_: object) -> None:
    raise TooLong


def run(cases: int, seed: int, seconds: int, only: list[str] | None = None) -> dict[str, Any]:
    """Edit and load; counts by kind of artifact, and every foreign error with the edit that caused it."""
    signal.signal(signal.SIGALRM, _stop)
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    foreign: list[dict[str, str]] = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        root = Path(folder)
        loaders = make_artifacts(root / "made")
        for number in range(cases):
            chance = random.Random(f"{seed} {number}")
            kind = sorted(only or loaders)[number % len(only or loaders)]
            place = root / "case" / kind
            shutil.rmtree(root / "case", ignore_errors=True)
            shutil.copytree(root / "made" / kind, place)
            done, outcome, trace = edit(place, chance), "loaded", ""
            signal.alarm(seconds)
            try:
                loaders[kind](place)
            except SparsebitError:
                outcome = "refused"
            except TooLong:
                outcome = "too long"
            except Exception as error:
                outcome = "foreign"
                last = [f for f in traceback.extract_tb(error.__traceback__) if "sparsebit/" in f.filename][
                    -1:
                ]
                where = "".join(f"{f.filename.rpartition('sparsebit/')[2]}:{f.lineno}" for f in last)
                trace = f"{type(error).__name__}: {str(error)[:100]} ({where})"
            finally:
                signal.alarm(0)
            counts[kind][outcome] += 1
            if outcome in ("foreign", "too long"):
                foreign.append(
                    {"case": str(number), "artifact": kind, "edit": done, "error": trace or outcome}
                )
    return {"counts": {kind: dict(count) for kind, count in sorted(counts.items())}, "wrong": foreign}


def main() -> None:
    """Parse, run, write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", help="kinds of artifacts; default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for one case")
    parser.add_argument("--output", type=Path, default=RESULTS / "tamper.json")
    arguments = parser.parse_args()
    start = time.perf_counter()
    result = run(arguments.cases, arguments.seed, arguments.seconds, arguments.only)
    result |= {
        "cases": arguments.cases,
        "seed": arguments.seed,
        "took_s": round(time.perf_counter() - start, 1),
    }
    add_run({"environment": describe(arguments.seed), **result}, arguments.output)


if __name__ == "__main__":
    main()
