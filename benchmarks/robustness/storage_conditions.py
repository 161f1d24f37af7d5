"""Full disks, read-only folders, and two processes in one folder: is anything lost, or told wrongly?

Everything that writes (models, pruned models, language models, ONNX files, folders for engines) is run on a small file
system that is full after a part of what it needs, then on one that is read-only, then by two processes at once. An
older result is in the place already. Right is an error of ours with the older result still there, or a new result
that is complete.

    python -m benchmarks.robustness.storage_conditions --output result.json

It mounts file systems in memory, for which Linux wants root.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.environment import describe
from benchmarks.robustness.kill import files, quantized
from benchmarks.robustness.tamper import language_model
from sparsebit import QuantModel, SparseModel
from sparsebit.demo.digits_net import net
from sparsebit.errors import SparsebitError
from sparsebit.llm import LanguageModel
from sparsebit.sparse import load as load_pruned

X = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
# Write version 0 or 1; read what is there.
Verb = tuple[Callable[[Path, int], object], Callable[[Path], object]]


def pruned(version: int) -> SparseModel:
    ratio = (0.25, 0.5)[version]
    config = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": ratio, "ROUND_TO": 1}}
    smodel = SparseModel(net(), config, example_inputs=(X,))
    smodel.calc_params()
    return smodel


def verbs() -> dict[str, Verb]:
    """What writes, and how it is read again."""
    import onnx

    models = [quantized(0), quantized(1)]
    smodels = [pruned(0), pruned(1)]
    small = language_model()
    return {
        "save": (
            lambda place, version: models[version].save(place / "m"),
            lambda place: QuantModel.load(place / "m", net()),
        ),
        "save pruned": (
            lambda place, version: smodels[version].save(place / "m"),
            lambda place: load_pruned(place / "m", net()),
        ),
        "save language model": (
            lambda place, version: small.save(place / "m"),
            lambda place: LanguageModel.load(place / "m"),
        ),
        "export": (
            lambda place, version: models[version].export_onnx(X, place / "m.onnx"),
            lambda place: onnx.checker.check_model(str(place / "m.onnx"), full_check=True),
        ),
        "export compressed-tensors": (
            lambda place, version: small.export(place / f"m{version}", "compressed-tensors"),
            lambda place: (place / "m0" / "config.json").stat(),
        ),
    }


@contextlib.contextmanager
def file_system(kilobytes: int) -> Iterator[Path]:
    """A file system of so many kilobytes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", folder],
            check=True,
            capture_output=True,
        )
        try:
            yield Path(folder)
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


def attempt(write: Callable[[], object]) -> tuple[str, str]:
    """How it ended."""
    try:
        write()
    except SparsebitError as error:
        return "refused", str(error).splitlines()[0][:160]
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return (
            "CRASH",
            f"{type(error).__name__}: {str(error)[:120]} ({Path(last.filename).name}:{last.lineno})",
        )
    return "ok", ""


def judge(
    place: Path, read: Callable[[Path], object], before: dict[str, str], outcome: tuple[str, str]
) -> Any:
    """The outcome, or WRONG where what is there afterwards is neither the old nor a complete new result."""
    now = files(place)
    if outcome[0] == "refused" and now != before:
        return (
            "WRONG",
            f"refused ({outcome[1]}), and these files changed: {sorted(set(now) ^ set(before))[:4]}",
        )
    loaded = attempt(lambda: read(place))
    return outcome if loaded[0] == "ok" else ("WRONG", f"{outcome}, and then it cannot be read: {loaded}")


def full_disk(verb: Verb, part: float) -> Any:
    """The second version does not fit next to the first."""
    write, read = verb
    with file_system(100_000) as place:
        write(place, 0)
        used = sum(-(-path.stat().st_size // 4096) * 4 for path in place.rglob("*") if path.is_file())
        subprocess.run(
            ["mount", "-o", f"remount,size={used + int(part * used) + 8}k", str(place)],
            check=True,
            capture_output=True,
        )
        before = files(place)
        return judge(place, read, before, attempt(lambda: write(place, 1)))


def read_only(verb: Verb) -> Any:
    """Nothing may be written."""
    write, read = verb
    with file_system(100_000) as place:
        write(place, 0)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, capture_output=True)
        return judge(place, read, files(place), attempt(lambda: write(place, 1)))


def two_processes(verb: Verb, rounds: int) -> Any:
    """Two processes write different versions at the same time."""
    write, read = verb
    with tempfile.TemporaryDirectory() as folder:
        place, seen = Path(folder), []
        for _ in range(rounds):
            children = []
            for version in (0, 1):
                child = os.fork()
                if child == 0:
                    outcome = attempt(lambda version=version: write(place, version))  # type: ignore[misc]
                    os._exit({"ok": 0, "refused": 2}.get(outcome[0], 1))
                children.append(child)
            codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
            if any(code not in (0, 2) for code in codes):
                return "CRASH", f"exit codes {codes}"
            loaded = attempt(lambda: read(place))
            if loaded[0] != "ok":
                return "WRONG", f"exit codes {codes}, and then it cannot be read: {loaded}"
            seen.append(codes)
        left = [name for name in files(place) if ".draft" in name]
        return (
            ("WRONG", f"drafts are left: {left}")
            if left
            else ("ok", f"refused {sum(c.count(2) for c in seen)} times")
        )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, help="of two processes")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    for name, verb in verbs().items():
        conditions = {
            f"disk full at {part}": partial(full_disk, verb, part) for part in (0.0, 0.3, 0.7, 0.95)
        }
        conditions["read-only"] = partial(read_only, verb)
        if name != "export compressed-tensors":  # that refuses to replace a folder
            conditions["two processes"] = partial(two_processes, verb, arguments.rounds)
        for condition, run in conditions.items():
            outcome = found.setdefault(name, {})[condition] = run()
            print(f"{name}, {condition}: {outcome}", flush=True)
    text = json.dumps({"environment": describe(0), "rounds": arguments.rounds, "outcomes": found}, indent=1)
    if arguments.output:
        arguments.output.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
