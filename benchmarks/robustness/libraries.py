"""Architectures of timm and transformers, random weights, through capture and int8 export.

    python -m benchmarks.robustness.libraries --jobs 16 --output result.json

From timm the smallest model of every module, from transformers every base model that a small config makes and that
takes text or images. Each stage ends in one of the words that :mod:`benchmarks.robustness.architectures` lists. timm is
not in the constraints file (it needs torchvision, which has no build here): put it on ``PYTHONPATH``. Its models do not
use torchvision, so an empty one stands in.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch
from torch import Tensor, nn

from benchmarks.robustness.architectures import ROOT, Outcome, attempt, difference, leaves, summarize
from sparsebit import QuantModel, SparsebitError, capture

Batch = dict[str, Tensor]
Inputs = Callable[[int], Batch]
LIBRARIES = ("timm", "transformers")
SHARE = 6  # models of one process, which imports torch and the libraries once
SMALL: dict[str, Any] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim", "embedding_size"), 32
    ),
    **dict.fromkeys(
        ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers"), 2
    ),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_heads", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim", "n_inner", "d_ff"), 64
    ),
    **dict.fromkeys(("d_kv", "head_dim", "attention_head_size"), 8),
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "image_size": 32,
    "patch_size": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_decoder_layers": 2,
    "num_encoder_layers": 2,
    "state_size": 8,
    "use_cache": False,
    "initializer_range": 0.2,
}


def import_timm() -> Any:
    """timm, with an empty torchvision where there is none."""
    try:
        import torchvision  # noqa: F401
    except Exception:
        names = [
            "torchvision",
            "ops",
            "ops.misc",
            "transforms",
            "transforms.functional",
            "datasets",
            "datasets.folder",
        ]
        for name in [names[0], *(f"torchvision.{part}" for part in names[1:])]:
            sys.modules[name] = MagicMock()
    import timm

    return timm


def timm_names() -> list[str]:
    """The smallest model of every module of timm 1.0.22, by the number of its parameters."""
    text = Path(__file__).with_name("timm_models.txt").read_text(encoding="utf-8")
    return [f"timm/{name}" for name in text.split()]


def transformers_names() -> list[str]:
    """Every model type that has a base model."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return [f"transformers/{kind}" for kind in sorted(MODEL_MAPPING_NAMES)]


def make_timm(name: str) -> tuple[nn.Module, Inputs]:
    """A model of timm at its own image size."""
    net = import_timm().create_model(name)
    shape = net.default_cfg["input_size"]
    return net, lambda batch: {"x": torch.rand(batch, *shape)}


def make_transformers(kind: str) -> tuple[nn.Module, Inputs]:
    """The base model of a type from a small config; an error where that needs more than these settings."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    known = transformers.CONFIG_MAPPING[kind]().to_dict()
    config = transformers.CONFIG_MAPPING[kind](**{key: SMALL[key] for key in SMALL if key in known})
    architecture = MODEL_MAPPING_NAMES[kind]
    net = getattr(transformers, architecture if isinstance(architecture, str) else architecture[0])(config)
    if sum(parameter.numel() for parameter in net.parameters()) > 20_000_000:
        raise ValueError("does not become small")
    taken = inspect.signature(net.forward).parameters
    if "pixel_values" in taken and "input_ids" not in taken:
        size, channels = getattr(config, "image_size", 64), getattr(config, "num_channels", 3)
        height, width = (size, size) if isinstance(size, int) else size
        return net, lambda batch: {"pixel_values": torch.rand(batch, channels, height, width)}
    if "input_ids" in taken and "pixel_values" not in taken:
        names = ["input_ids", *("decoder_input_ids" for _ in range("decoder_input_ids" in taken))]
        return net, lambda batch: {name: torch.randint(3, 90, (batch, 16)) for name in names}
    raise ValueError("takes neither text alone nor images alone")


def break_ties(net: nn.Module) -> nn.Module:
    """Noise for matrices that start as zeros: among equal scores each runtime chooses another expert."""
    for parameter in net.parameters():
        if parameter.dim() > 1 and parameter.is_floating_point() and not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return net


def check_capture(net: nn.Module, inputs: Inputs) -> Outcome:
    """Equal to eager at the example and at another batch."""
    gm = capture(net, inputs(2))
    fixed = ""
    for batch in (2, 3):
        call = inputs(batch)
        try:
            found = gm(**call)
        except SparsebitError as error:
            if batch == 2:
                raise
            fixed = str(error)
            continue
        apart = difference(found, net(**call))
        if apart > 1e-5:
            return "WRONG", f"batch {batch}: relative difference {apart:.2g}"
    return ("fixed", fixed) if fixed else ("ok", "")


def check_exported(net: nn.Module, inputs: Inputs, folder: Path) -> Outcome:
    """An int8 file, run in a session of our own, against the quantized model."""
    import onnxruntime

    qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=inputs(2))
    if not qmodel.quantizers:
        return "nothing", ""
    qmodel.calibrate([inputs(2), inputs(2)], progress=False)
    path = folder / "model.onnx"
    qmodel.export_onnx(inputs(2), path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    call = inputs(2)
    floats, fake = leaves(net(**call)), leaves(qmodel(**call))
    filed = session.run(None, {slot.name: call[slot.name].numpy() for slot in session.get_inputs()})
    for one, quantized, exact in zip(filed, fake, floats, strict=True):
        allowed = float((quantized - exact).norm()) + 1e-3 * float(exact.norm()) + 1e-5
        apart = float((torch.from_numpy(one) - quantized).norm())
        if apart > 2 * allowed:
            return "WRONG", f"the file is {apart:.3g} from the model, which is {allowed:.3g} from float"
    return "ok", ""


def check_model(name: str, seconds: int) -> dict[str, Outcome]:
    """The stages of one model; ``eager`` where the model cannot be made or run as it is."""
    library, _, short = name.partition("/")
    torch.manual_seed(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net, inputs = (make_timm if library == "timm" else make_transformers)(short)
            net = break_ties(net).eval()
            with torch.no_grad():
                first, again = net(**inputs(2)), net(**(call := inputs(3)))
                if not leaves(first) or difference(again, net(**call)) > 0:
                    raise ValueError("gives no tensors, or not the same ones twice")
    except Exception as error:
        return {"eager": ("unchecked", f"{type(error).__name__}: {str(error)[:200]}")}
    with tempfile.TemporaryDirectory() as folder:
        return {
            "capture": attempt(lambda: check_capture(net, inputs), seconds),
            "int8": attempt(lambda: check_exported(net, inputs, Path(folder)), seconds),
        }


def follow(names: list[str], seconds: int) -> dict[str, dict[str, Outcome]]:
    """Some models in a process of their own; one that ends it is a crash, and those behind it come again."""
    command = [sys.executable, "-m", "benchmarks.robustness.libraries", "--seconds", str(seconds)]
    done = subprocess.run(
        [*command, "--some", *names],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    found: dict[str, dict[str, Outcome]] = {line["name"]: line["stages"] for line in lines}
    if done.returncode and (left := [name for name in names if name not in found]):
        why = f"the process ended with {done.returncode}: {done.stderr[-300:]}"
        found[left[0]] = {"process": ("CRASH", why)}
    return found


def run(
    names: list[str], jobs: int, seconds: int, until: float, found: dict[str, dict[str, Outcome]]
) -> Iterator[None]:
    """Add the stages of every model to what is ``found``, a few at a time."""
    shares = [names[first : first + SHARE] for first in range(0, len(names), SHARE)]

    def some(share: list[str]) -> dict[str, dict[str, Outcome]]:
        told: dict[str, dict[str, Outcome]] = {}
        while time.time() < until and (left := [name for name in share if name not in told]):
            told |= follow(left, seconds)
        return told

    with ThreadPoolExecutor(jobs) as pool:
        for told in pool.map(some, shares):
            found |= told
            yield


def summary(found: dict[str, dict[str, Outcome]]) -> dict[str, Any]:
    """Counts of the models that could be built, with the outcome of each; and why others could not be built."""
    built = {name: stages for name, stages in found.items() if "eager" not in stages}
    parts = {library: {n: s for n, s in built.items() if n.startswith(library)} for library in LIBRARIES}
    return {
        **summarize(built),
        "by library": {library: summarize(part)["counts"] for library, part in parts.items()},
        "outcomes": {name: built[name] for name in sorted(built)},
        "not built": {name: stages["eager"][1] for name, stages in found.items() if "eager" in stages},
    }


def read_earlier(path: Path) -> dict[str, dict[str, Outcome]]:
    """The models of an earlier part of the same run."""
    if not path.is_file():
        return {}
    told = json.loads(path.read_text(encoding="utf-8"))
    found = {name: {k: (v[0], v[1]) for k, v in s.items()} for name, s in told["outcomes"].items()}
    return found | {name: {"eager": ("unchecked", why)} for name, why in told["not built"].items()}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as timm/resnet18 or transformers/bert; default: all")
    parser.add_argument("--every", type=int, default=1, help="of transformers' types, take one of so many")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=90, help="limit for one stage of one model")
    parser.add_argument("--total", type=int, default=86_400, help="start no model after this many seconds")
    parser.add_argument(
        "--output", type=Path, help="a JSON file, kept up to date; its models are not run again"
    )
    parser.add_argument("--again", action="store_true", help="run the named models again")
    parser.add_argument("--some", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    if arguments.some:
        torch.set_num_threads(1)
        for name in arguments.some:
            print(json.dumps({"name": name, "stages": check_model(name, arguments.seconds)}), flush=True)
        return
    from benchmarks.environment import describe

    environment = describe(0, ("torch", "numpy", "onnx", "onnxruntime", "timm", "transformers"))
    names = arguments.names or [*timm_names(), *transformers_names()[:: arguments.every]]
    found = read_earlier(arguments.output) if arguments.output else {}
    left = names if arguments.again else [name for name in names if name not in found]
    for _ in run(left, arguments.jobs, arguments.seconds, time.time() + arguments.total, found):
        if arguments.output:
            text = json.dumps({"environment": environment, **summary(found)}, indent=1)
            arguments.output.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(summary(found)["by library"], indent=1))


if __name__ == "__main__":
    main()
