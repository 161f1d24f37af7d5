"""Every model type of transformers that predicts tokens, small and with random weights, through ``sparsebit.llm``.

    python -m benchmarks.robustness.model_types --output result.json

Each type runs in a process of its own. The stages:

- ``quantize``: GPTQ with 4 bits; the given model is unchanged, and the result is finite;
- ``weights``: every parameter that a block multiplies by is quantized, or listed with a true reason;
- ``dequantized``: the float model with the dequantized weights predicts the same;
- ``folder``: the same result from the folder that ``save_pretrained`` writes;
- ``w8``: 8 bits without data are within half a step of the float weights, and predict what float does;
- ``saved`` and ``pretrained``: loaded models predict the same, bit for bit;
- ``generate``: the same tokens as the float model with the dequantized weights;
- one for each format of ``export``, and three for ``llm.prune``, whose result is saved and loaded.

``--stages`` runs some of them only, such as ``--stages quantize "export gptq"`` where GPTQModel is installed.

Each ends in one of:

- ``ok``; ``nothing`` to check; ``unproven`` because the engine is not installed;
- ``refused``: an error of ours;
- ``float``: weights that the blocks multiply in a way that is not packed, and that are listed as such;
- ``sensitive``: the predictions are further off than 1 in 1000, and random errors of the same size in the float weights
  move them as far;
- ``unread``: the engine cannot load or run the file;
- ``CRASH``, ``WRONG``, ``SLOW``: see :mod:`benchmarks.robustness.architectures`.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import logging
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.robustness.architectures import Outcome, attempt, difference, summarize
from benchmarks.robustness.small_models import all_types, build_small, random_ids
from sparsebit import llm
from sparsebit.config.llm import FORMAT_NAMES
from sparsebit.llm.blocks.calls import outputs_of, run_model
from sparsebit.llm.blocks.find import find_stacks
from sparsebit.llm.plan import NO_MATRIX
from tests.llm.models import tokenizer

LENGTH = 32
W4 = {
    "W": {"BIT": 4, "SCHEME": "full-range", "GROUP_SIZE": 32, "SCALE_DTYPE": "float16"},
    "METHOD": "gptq",
    "CALIBRATION": {"SAMPLES": 4, "LENGTH": LENGTH},
}
W8 = {"W": {"BIT": 8, "SCHEME": "symmetric", "GROUP_SIZE": 32}, "METHOD": "rtn"}
RANDOM_ERRORS = 16
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "mv", "_grouped_mm")
COPIES = ("index", "index_select", "clone", "_to_copy", "cat", "mul", "constant_pad_nd", "_unsafe_view")


@torch.no_grad()
def predict(model: nn.Module, ids: Tensor) -> Tensor:
    """What a model predicts, with the same random numbers each time."""
    torch.manual_seed(0)
    return outputs_of(run_model(model, ids)).float()


def cosines(found: Tensor, expected: Tensor) -> tuple[float, float]:
    """Of all predictions together, and the median of those of single tokens."""
    cosine = nn.functional.cosine_similarity
    together = cosine(found.flatten().double(), expected.flatten().double(), dim=0)
    return float(together), float(cosine(found, expected, dim=-1).median())


def plain_names(names: Any) -> str:
    """Names without the numbers of their layers, each once."""
    return ", ".join(sorted({re.sub(r"\d+", "*", name) for name in names}))


class WatchProducts(TorchDispatchMode):
    """Parameters whose numbers a product reads, also from a copy; below torch functions, unlike the library."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.found: set[str] = set()
        self._names = {one.untyped_storage().data_ptr(): name for name, one in model.named_parameters()}
        self._kept: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and one.dim() > 1]
        read = [
            self._names[key] for one in inputs if (key := one.untyped_storage().data_ptr()) in self._names
        ]
        if name in PRODUCTS:
            self.found |= {self._names.get(one.untyped_storage().data_ptr(), "") for one in inputs[-2:]} - {
                ""
            }
        elif name in COPIES and read:
            for one in tree_leaves(result):
                self._names.setdefault(one.untyped_storage().data_ptr(), read[0])
                self._kept.append(one)  # so that no other tensor gets its storage
        return result


class Checks:
    """The stages of one model type."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder, self.model = name, folder, build_small(name)
        self.state = {key: one.clone() for key, one in self.model.state_dict().items()}
        self.ids, self.data = random_ids(2, LENGTH), random_ids(1, 8 * LENGTH, seed=3)[0]
        self.float = predict(self.model, self.ids)
        if not self.float.isfinite().all() or difference(predict(self.model, self.ids), self.float):
            raise ValueError("predicts numbers that are not finite, or not the same ones twice")
        self.result: Any = None

    def stages(self) -> Mapping[str, Callable[[], Outcome]]:
        """All stages, in order."""
        found: dict[str, Callable[[], Outcome]] = {
            "quantize": self.quantize,
            "weights": self.weights,
            "dequantized": self.dequantized,
            "folder": self.from_folder,
            "w8": self.eight_bits,
            "saved": self.saved,
            "pretrained": self.pretrained,
            "generate": self.generate,
        }
        found |= {f"export {name}": lambda name=name: self.export(name) for name in FORMAT_NAMES}  # type: ignore[misc]
        for part, amount in (("hidden", 0.5), ("heads", 0.5), ("blocks", 1)):
            found[f"prune {part}"] = lambda part=part, amount=amount: self.prune(part, amount)  # type: ignore[misc]
        return found

    def unchanged(self) -> bool:
        """Whether the given model is what it was."""
        return all(torch.equal(one, self.state[key]) for key, one in self.model.state_dict().items())

    def quantize(self) -> Outcome:
        result = llm.quantize(self.model, self.data, W4, progress=False)
        self.packed = predict(result.model, self.ids)
        if not self.unchanged() or not self.packed.isfinite().all():
            return "WRONG", "the model changed, or the result is not finite"
        self.result = result
        return "ok", f"cosine {cosines(self.packed, self.float)[0]:.4f}"

    def _replaced(self, result: Any, seed: int | None = None) -> nn.Module:
        """The float model with the dequantized weights; with a seed, their errors have random signs."""
        generator = torch.Generator().manual_seed(seed or 0)
        model: Any = copy.deepcopy(self.model)
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")
        parameters = dict(model.named_parameters(remove_duplicate=False))
        with torch.no_grad():
            for name, held in result.weights.items():
                numbers = held.numbers().T if name in result.transposed else held.numbers()
                matrix, bracket, index = name.partition("[")
                place = parameters[matrix][int(index[:-1])] if bracket else parameters[matrix]
                if seed is None:
                    place.copy_(numbers)
                else:
                    place += (numbers - place) * (2 * torch.randint(2, place.shape, generator=generator) - 1)
        return model

    def _largest_error(self, result: Any) -> float:
        """Of the quantized weights, in steps of their grids."""
        errors = []
        for name, held in result.weights.items():
            matrix, bracket, index = name.partition("[")
            weight = self.state[matrix][int(index[:-1])] if bracket else self.state[matrix]
            error = (held.numbers() - (weight.T if name in result.transposed else weight)).abs()
            scale = held.grid.scale.reshape(len(error), -1)
            steps = error / scale.repeat_interleave(error.shape[1] // scale.shape[1], 1).clamp(min=1e-30)
            errors.append(float(steps.max()))
        return max(errors)

    def weights(self) -> Outcome:
        model: Any = copy.deepcopy(self.model)
        if hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")
        with WatchProducts(model) as watch:
            predict(model, self.ids)
        inside = tuple(f"{name}." for stack in find_stacks(model) for name in stack.names)
        multiplied = {name for name in watch.found if name.startswith(inside)}
        quantized, ignored = {name.partition("[")[0] for name in self.result.weights}, self.result.ignored
        if silent := multiplied - quantized - set(ignored):
            return "WRONG", f"silently in float: {plain_names(silent)}"
        left = {name: ignored[name] for name in multiplied - quantized if "IGNORE" not in ignored[name]}
        if wrong := [name for name, reason in left.items() if reason == NO_MATRIX]:
            return "WRONG", f"a product reads {plain_names(wrong)}"
        return ("float" if left else "ok"), plain_names(left)

    def dequantized(self) -> Outcome:
        apart = difference(self.packed, predict(self._replaced(self.result), self.ids))
        return ("ok" if apart < 2e-4 else "WRONG"), f"{apart:.2g}"

    def from_folder(self) -> Outcome:
        self.model.save_pretrained(self.folder / "float")  # type: ignore[operator]
        other = llm.quantize(self.folder / "float", self.data, W4, progress=False)
        apart = difference(predict(other.model, self.ids), self.packed)
        return ("WRONG" if apart or set(other.weights) != set(self.result.weights) else "ok"), f"{apart:.2g}"

    def eight_bits(self) -> Outcome:
        result = llm.quantize(self.model, None, W8, progress=False)
        if (steps := self._largest_error(result)) > 0.501:
            return "WRONG", f"a weight differs by {steps:.3f} steps"
        found = predict(result.model, self.ids)
        if (apart := difference(found, predict(self._replaced(result), self.ids))) > 2e-4:
            return "WRONG", f"not what the dequantized weights predict: {apart:.2g}"
        reached = cosines(found, self.float)
        told = "cosine {:.5f}, median {:.5f}".format(*reached)
        if reached[0] > 0.999:
            return "ok", told
        least = [1.0, 1.0]
        for seed in range(RANDOM_ERRORS):
            moved = cosines(predict(self._replaced(result, seed), self.ids), self.float)
            least = [min(pair) for pair in zip(least, moved, strict=True)]
            # Twice as far as by random errors is still no sign of a mistake.
            if all(1 - one <= 2 * (1 - other) for one, other in zip(reached, least, strict=True)):
                return "sensitive", told + "; with random errors {:.5f}, median {:.5f}".format(*least)
        return "WRONG", told + "; with random errors only {:.5f}, median {:.5f}".format(*least)

    def saved(self) -> Outcome:
        self.result.save(self.folder / "saved")
        loaded = llm.LanguageModel.load(self.folder / "saved")
        apart = difference(predict(loaded.model, self.ids), self.packed)
        return ("WRONG" if apart else "ok"), f"{apart:.2g}"

    def pretrained(self) -> Outcome:
        self.result.save_pretrained(self.folder / "pretrained")
        llm.register_transformers()
        kind: Any = type(self.result.model)
        apart = difference(
            predict(kind.from_pretrained(self.folder / "pretrained").eval(), self.ids), self.packed
        )
        return ("WRONG" if apart else "ok"), f"{apart:.2g}"

    def generate(self) -> Outcome:
        start = self.ids[:1, :6]
        settings = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False}

        def tokens(model: Any) -> Tensor:
            torch.manual_seed(0)
            made: Tensor = model.generate(start, attention_mask=torch.ones_like(start), **settings)
            return made

        try:
            tokens(copy.deepcopy(self.model))
        except Exception as error:
            return "nothing", f"the float model: {type(error).__name__}: {str(error)[:100]}"
        same = torch.equal(tokens(self.result.model), tokens(self._replaced(self.result)))
        return ("ok" if same else "WRONG"), ""

    def export(self, format: str) -> Outcome:
        self.result.tokenizer = tokenizer()
        try:
            place = self.folder / f"exported.{format}"
            report = self.result.export(place, format, ids=self.ids[0])
        finally:
            self.result.tokenizer = None
        outcome = (
            "ok" if report.proven else "unproven" if report.ok else "unread" if report.failure else "WRONG"
        )
        return outcome, "" if report.ok else str(report)[-300:]

    def prune(self, part: str, amount: float) -> Outcome:
        settings: Any = {part: amount}
        small: Any = llm.prune(self.model, self.data, **settings)
        found = predict(small, self.ids)
        if not self.unchanged() or not found.isfinite().all():
            return "WRONG", "the model changed, or the result is not finite"
        small.save_pretrained(self.folder / part)
        loaded = type(small).from_pretrained(self.folder / part, dtype=torch.float32).eval()
        apart = difference(predict(loaded, self.ids), found)
        return ("WRONG" if apart > 1e-5 else "ok"), f"loaded: {apart:.2g}"


def check_type(name: str, seconds: int, only: Sequence[str], tell: Callable[[str, Outcome], object]) -> None:
    """Run all stages of a type, or ``only`` these."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            checks = Checks(name, Path(folder))
        except Exception as error:  # transformers cannot build or run it, or not in this size
            tell("eager", ("unchecked", f"{type(error).__name__}: {str(error).strip()[:200]}"))
            return
        for stage, check in checks.stages().items():
            if only and stage not in only:
                continue
            if checks.result is not None or stage in ("quantize", "w8") or stage.startswith("prune"):
                tell(stage, attempt(lambda check=check: _with_grad(check), seconds))  # type: ignore[misc]


def _with_grad(check: Callable[[], Outcome]) -> Outcome:
    with torch.enable_grad():
        return check()


def follow(name: str, seconds: int, total: int, only: Sequence[str]) -> dict[str, Outcome]:
    """A type in a forked process, which has the libraries loaded already."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            check_type(
                name,
                seconds,
                only,
                lambda stage, one: os.write(writing, f"{json.dumps([stage, one])}\n".encode()),
            )
        finally:
            os._exit(0)
    os.close(writing)
    timer = threading.Timer(total, os.kill, (process, 9))
    timer.start()
    with os.fdopen(reading) as lines:
        found: dict[str, Outcome] = {stage: tuple(one) for stage, one in map(json.loads, lines)}
    status = os.waitpid(process, 0)[1]
    timer.cancel()
    return found | ({"process": ("CRASH", f"ended with {status}")} if status else {})


def summary(found: Mapping[str, dict[str, Outcome]]) -> dict[str, Any]:
    """Counts, the outcomes of every type, and why others could not be built."""
    built = {name: found[name] for name in sorted(found) if "eager" not in found[name]}
    missing = {name: stages["eager"][1] for name, stages in sorted(found.items()) if "eager" in stages}
    return {**summarize(built), "types": len(built), "outcomes": built, "not built": missing}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="such as causal/llama; default: all")
    parser.add_argument("--stages", nargs="+", default=[], help="such as quantize w8; default: all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=120, help="limit for one stage of one type")
    parser.add_argument("--total", type=int, default=400, help="limit for one type")
    parser.add_argument(
        "--output", type=Path, help="a JSON file, kept up to date; its types are not run again"
    )
    parser.add_argument(
        "--again",
        action="store_true",
        help='run the named types again; "repeated" in the file says on which commit',
    )
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from benchmarks.environment import describe

    packages = ["torch", "transformers", "onnxruntime_genai", "openvino", "compressed_tensors"]
    if importlib.util.find_spec("gptqmodel"):
        packages.append("gptqmodel")
    environment = describe(0, tuple(packages))
    commit = environment["commit"]
    found: dict[str, dict[str, Outcome]] = {}
    repeated: dict[str, str] = {}
    if arguments.output and arguments.output.is_file():
        told = json.loads(arguments.output.read_text(encoding="utf-8"))
        environment, repeated = told["environment"], told.get("repeated", {})
        found = told["outcomes"] | {
            name: {"eager": ("unchecked", why)} for name, why in told["not built"].items()
        }
    names = arguments.names or all_types()
    left = names if arguments.again else [name for name in names if name not in found]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for name, stages in zip(
            left,
            pool.map(lambda name: follow(name, arguments.seconds, arguments.total, arguments.stages), left),
            strict=True,
        ):
            found[name] = found.get(name, {}) | stages if arguments.stages else stages
            if commit != environment["commit"]:
                repeated[name] = f"{commit}: {', '.join(arguments.stages) or 'all stages'}"
            if arguments.output:
                told = {"environment": environment, "repeated": repeated, **summary(found)}
                text = json.dumps(told, indent=1)
                arguments.output.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(summary(found)["counts"], indent=1))


if __name__ == "__main__":
    main()
