"""What is left when a process is killed (kill -9) at a random moment, and does going on give the same result?

Commands run in a forked process that is killed after a random part of the time they take. Then what is on the disk must
be absent or complete, the same command (with ``--resume``) must end well, and its result must be that of a run that was
never killed, with no other file left. The result is added to those in the file of results.

Run from the repository root: ``python -m benchmarks.robustness.kill --kills 30 --seed 0``
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks.environment import add_run, describe
from sparsebit import QuantModel, llm
from sparsebit.__main__ import main as command_line
from sparsebit.demo.digits_net import net
from sparsebit.errors import SparsebitError
from sparsebit.llm import LanguageModel

RESULTS = Path(__file__).parent / "results"
MOST_RUNS = 20
MODEL = "benchmarks.robustness.kill:deep_language_model"
DATA = ("sparsebit.demo:net", "--data", "sparsebit.demo:training_data", "--batches", "2")


@dataclass(frozen=True)
class Job:
    """Something to kill: what it does in a folder, what must be true of the folder afterwards, and its result."""

    name: str
    work: Callable[[Path], object]
    check: Callable[[Path], str | None]
    result: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda place: None
    refuses: int = (
        0  # the exit code where the result was there already, complete, when the process was killed
    )


def cli(*arguments: str) -> Callable[[Path], object]:
    """A command that writes below the folder it is started in."""
    return lambda place: command_line([*arguments])


def quantized(seed: int) -> QuantModel:
    x = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    qmodel = QuantModel(net(), "int8_onnxruntime", example_inputs=(x,))
    qmodel.calibrate([x], progress=False)
    qmodel.set_quant(w_quant=True, a_quant=True)
    return qmodel


def files(place: Path) -> dict[str, str]:
    """Every file below a folder with its digest."""
    return {
        path.relative_to(place).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(place.rglob("*"))
        if path.is_file()
    }


def loads(name: str, *, always: bool = False) -> Callable[[Path], str | None]:
    """A saved model that is complete, or (unless ``always``) not there yet."""

    def check(place: Path) -> str | None:
        if not always and not (place / name / "sparsebit.json").exists():
            return None
        try:
            QuantModel.load(place / name, net())
        except SparsebitError as error:
            return str(error)
        return None

    return check


def searched(place: Path) -> object:
    """What a search found: everything but times."""
    state = json.loads((place / "found" / "search.json").read_text())
    trials = [(trial["name"], trial["measured"] and trial["measured"]["metric"]) for trial in state["trials"]]
    return trials, (place / "found" / "recipe.yaml").read_text()


def language_model_loads(place: Path) -> str | None:
    """Saved language models below the folder are complete."""
    for found in place.glob("*/sparsebit.json"):
        try:
            LanguageModel.load(found.parent)
        except SparsebitError as error:
            return str(error)
    return None


def deep_language_model() -> nn.Module:
    """Eight blocks, so that a kill falls between them."""
    from transformers import LlamaConfig, LlamaForCausalLM

    small = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4}
    torch.manual_seed(0)
    made: nn.Module = LlamaForCausalLM(LlamaConfig(vocab_size=96, max_position_embeddings=128, **small))
    return made.eval()


def save_language_model(place: Path) -> None:
    """What `llm export` starts from."""
    small = llm.quantize(deep_language_model(), None, {"METHOD": "rtn"}, progress=False)
    small.save(place / "small")


def complete_onnx(place: Path) -> str | None:
    import onnx

    path = place / "a.onnx"
    if path.exists():
        try:
            onnx.checker.check_model(str(path))
        except Exception as error:
            return str(error)
    return None


def jobs() -> tuple[Job, ...]:
    steps = "SCHEDULE.RECOVERY=[{adaround: {steps: 30}}]"
    new = quantized(1)
    return (
        Job(
            "save",
            lambda p: new.save(p / "m"),
            loads("m", always=True),
            files,
            lambda p: quantized(0).save(p / "m"),
        ),
        Job("quantize", cli("quantize", *DATA, "--set", steps, "-o", "q", "--resume"), loads("q"), files),
        Job(
            "compress",
            cli(
                "compress",
                *DATA,
                "--size",
                "0.2",
                "--max-drop",
                "0.5",
                "--time-budget",
                "1e5",
                "-o",
                "found",
                "--resume",
            ),
            lambda place: None,
            searched,
        ),
        Job(
            "prune",
            cli("prune", *DATA, "--set", "SPARSER.RATIO=0.5", "-o", "p"),
            lambda p: None,
            files,
        ),
        Job(
            "export",
            cli("export", "sparsebit.demo:net", "--input", "2x1x8x8", "-o", "a.onnx"),
            complete_onnx,
            lambda place: sorted(files(place)),
        ),
        Job(
            "llm quantize",
            cli("llm", "quantize", MODEL, "--set", "METHOD=hqq", "-o", "w4"),
            language_model_loads,
            files,
        ),
        Job(
            "llm prune",
            cli("llm", "prune", MODEL, "--hidden", "0.5", "-o", "half"),
            lambda place: None,
            files,
            refuses=2,
        ),
        Job(
            "llm export",
            cli("llm", "export", "small", "--format", "compressed-tensors", "-o", "ct"),
            language_model_loads,
            files,
            save_language_model,
            refuses=2,
        ),
    )


def start(job: Job, place: Path, kill_after: float | None) -> int:
    """Run the job in a forked process; returns how it ended, as ``os.waitstatus_to_exitcode`` says it."""
    child = os.fork()
    if child == 0:
        os.chdir(place)
        code = 1
        try:
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
                os.dup2(nothing.fileno(), 2)
                code = int(job.work(place) or 0)  # a command returns its exit code, saving nothing
        except SystemExit as end:
            code = int(end.code or 0) if isinstance(end.code, int | None) else 1
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run(kills: int, seed: int) -> dict[str, Any]:
    """Kill each job in turns until there were so many kills; counts, and everything that went wrong."""
    counts: dict[str, dict[str, int]] = {}
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        known: dict[str, tuple[float, object]] = {}
        killed = number = 0
        todo = jobs()
        while killed < kills:
            job, chance = todo[number % len(todo)], random.Random(f"{seed} {number}")
            number += 1
            count = counts.setdefault(job.name, {"runs": 0, "killed": 0, "wrong": 0})
            if job.name not in known:
                place = root / f"{job.name}-whole"
                place.mkdir()
                job.prepare(place)
                begun = time.perf_counter()
                code = start(job, place, None)
                known[job.name] = time.perf_counter() - begun, job.result(place)
                assert code == 0, f"{job.name} fails without being killed"
            took, expected = known[job.name]
            place = root / job.name
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            job.prepare(place)
            problem: str | None = None
            for attempt in range(MOST_RUNS):
                last = attempt == MOST_RUNS - 1 or chance.random() < 0.3
                code = start(job, place, None if last and attempt else chance.uniform(0, took))
                count["runs"] += 1
                count["killed"] += code == -signal.SIGKILL
                killed += code == -signal.SIGKILL
                problem = problem or job.check(place)
                if code != -signal.SIGKILL:
                    break
            if code not in (0, job.refuses):
                problem = problem or f"it ends with {code}"
            if problem is None and job.result(place) != expected:
                problem = "another result"
            if problem is not None:
                count["wrong"] += 1
                wrong.append(f"{job.name} (number {number - 1}): {problem}")
    return {"counts": counts, "wrong": wrong}


def main() -> None:
    """Parse, run, write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS / "kill.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # a forked process has none of the threads that were started before
    begun = time.perf_counter()
    result = run(arguments.kills, arguments.seed)
    result |= {"kills": arguments.kills, "took_s": round(time.perf_counter() - begun, 1)}
    add_run({"environment": describe(arguments.seed), **result}, arguments.output)


if __name__ == "__main__":
    main()
