"""Check the GPU kernels against their references, then time them.

    python -m benchmarks.gpu.run fake_quant packed_matmul=120    # the second one ends after 120 s
    python -m benchmarks.gpu.run --call 1                        # 1, 2 and 3: what is not measured, 10 minutes each
    python -m benchmarks.gpu.run --call 1 --dry-run              # what that would do

Prints a table and writes ``gpu_<question>.json`` to the folder in ``OUT`` (or ``--out``), again after every row: a run
may be cut short. A kernel that fails its check is reported and still timed where it runs; the others go on.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.compile import run as zoo
from benchmarks.environment import describe
from benchmarks.gpu import (
    calibration,
    compiled,
    fake_quant,
    gptq,
    grouped,
    packed_matmul,
    packed_tiles,
    reconstruction,
    resnet50,
    resnet50_forms,
    semi_structured,
)
from benchmarks.llm import on_gpu

ROOT = Path(__file__).resolve().parents[2]


class Found(dict[str, Any]):
    """What is known of a question so far, and the file it is kept in."""

    def __init__(self, path: Path, **content: Any) -> None:
        super().__init__(content)
        self.path = path

    def write(self) -> None:
        """Replace the file; one that is cut short would be of no use."""
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(self, indent=1) + "\n", encoding="utf-8")
        os.replace(draft, self.path)

    def keep(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Pass on rows, each of them written first."""
        self["rows"] = []
        for row in rows:
            self["rows"].append(row)
            self.write()
            yield row


def time_of(step: Callable[[], Any], repeats: int = 20, graph: bool = False) -> float:
    """Median microseconds of one call, between CUDA events; with ``graph`` without the time to launch it."""
    calls = 1
    for _ in range(3):
        step()
    if graph:
        captured, calls = torch.cuda.CUDAGraph(), 10
        with torch.cuda.graph(captured):
            for _ in range(calls):
                step()
        step = captured.replay
        step()
    spans = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        spans.append((start, end))
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(end) for start, end in spans)
    return 1000 * times[len(times) // 2] / calls


def measure_copy() -> float:
    """Bytes per second of a large copy on the device, read and written."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() * 4 / (time_of(lambda: target.copy_(source)) * 1e-6)


def check(
    name: str, cases: list[Any], compare: Callable[[Any], str | None], seconds: float = 25, loud: bool = False
) -> dict[str, Any]:
    """Run cases until the time is up; print those that fail at once, the first few with their traceback."""
    failed, not_covered, shown, end = [], 0, 0, time.monotonic() + seconds
    start = time.monotonic()
    for index, case in enumerate(cases):
        if time.monotonic() > end:  # most of it goes into compiling a kernel for each kind of tile
            cases = cases[:index]
            break
        try:
            problem = compare(case)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            if shown < 3:
                traceback.print_exc()
                shown += 1
        if problem == "not covered":
            not_covered += 1
        elif problem is not None:
            failed.append(f"{case}: {problem}")
            if len(failed) < 15:
                print("  WRONG", failed[-1][:600])
        if loud:
            print(
                f"  {time.monotonic() - start:5.1f} s {case}: {'right' if problem is None else problem[:200]}"
            )
    right = len(cases) - len(failed) - not_covered
    print(f"{name}: {right} right, {not_covered} not covered, {len(failed)} wrong")
    return {"cases": len(cases), "not_covered": not_covered, "wrong": failed}


def ask_fake_quant(bandwidth: float, found: Found) -> None:
    """Fused fake-quantization."""
    cases = [
        fake_quant.Case(c.shape, c.layout, dtype, "uint8", c.channels_last)
        for c in fake_quant.TIMED.values()
        for dtype in (torch.float32, torch.bfloat16)
    ] + fake_quant.draw_cases(300, seed=1)
    found["check"] = check("fake_quant", cases, lambda case: fake_quant.compare(case, "cuda"), 8)
    found["compiled"] = check(
        "fake_quant compiled", fake_quant.LOWERED, lambda case: fake_quant.compare_lowered(case, "cuda"), 40
    )
    for row in found.keep(fake_quant.measure(bandwidth, time_of)):
        print(
            f"{row['case'][:38]:38s} {row['dtype'][:6]} {'learned' if row['learned'] else 'fixed':7s}"
            f" floor {row['floor_us']:6.1f} fused {row['fused_us']:6.1f} {row['fused_over_floor']:5.2f}x"
            f" plain {row['plain_over_floor']:5.2f}x"
            f" eager {row['fused_eager_us']:5.0f} {row['plain_eager_us']:5.0f}"
        )


def ask_packed_matmul(bandwidth: float, found: Found) -> None:
    """Products with a packed weight."""
    cases = [packed_matmul.Case(*shape, batch) for shape in packed_matmul.SHAPES for batch in (1, 16, 64)]
    cases += packed_matmul.draw_cases(150, seed=1)
    found["check"] = check("packed_matmul", cases, lambda case: packed_matmul.compare(case, "cuda"), 10)
    _show_products(packed_matmul.measure(bandwidth, time_of), found)


def ask_packed_many(bandwidth: float, found: Found) -> None:
    """Products with 65 to 2000 vectors, every width."""
    _show_products(packed_matmul.measure(bandwidth, time_of, packed_matmul.MANY, all_batches=True), found)


def _show_products(rows: Iterable[dict[str, Any]], found: Found) -> None:
    for row in found.keep(rows):
        print(
            f"{row['shape']!s:14s} {row['code']:5s} groups of {row['group_size']!s:4s} batch {row['batch']:4d}"
            f" floor {row['floor_us']:6.1f} bf16 {row['bf16_us']:6.1f} packed {row['packed_us']:6.1f}"
            f" ({row['bf16_us'] / row['packed_us']:4.2f}x, {row['packed_us'] / row['floor_us']:4.2f} floor)"
        )


def ask_grouped(bandwidth: float, found: Found) -> None:
    """Weights snapped together, beside each alone."""
    cases = [(kind, dtype) for kind in ("lsq", "uniform") for dtype in (torch.float32, torch.bfloat16)]
    found["check"] = check("grouped", cases, lambda case: grouped.compare(*case), loud=True)


def ask_compiled(bandwidth: float, found: Found) -> None:
    """``torch.compile`` of quantized models, without a graph break, beside the same models as they are."""
    found["small"] = check("compiled", compiled.CASES, compiled.compare, 45, loud=True)
    found["zoo"] = check("compiled zoo", list(zoo.SAMPLE), zoo.find_failure, 45, loud=True)


def add_floor(
    row: dict[str, Any], floats: dict[Any, dict[str, Any]], kind: Any, bandwidth: float
) -> dict[str, Any]:
    """A step with its floor: the float step of its kind, which comes first, and what quantizers have to move."""
    row["floor_ms"] = floats.setdefault(kind, row)["ms"] + 1e3 * row["floor_bytes"] / bandwidth
    return row


def ask_resnet50(
    bandwidth: float,
    found: Found,
    is_compiled: bool = False,
    mode: str | None = None,
    recorded: tuple[bool, ...] = (False,),
) -> None:
    """A training step of ResNet-50 in bfloat16, beside the float step, the first of its memory format."""
    x = torch.zeros(1, device="cuda", dtype=torch.bfloat16)
    found["host_us"] = resnet50.profile_host(x)
    print("host, us: " + ", ".join(f"{name} {us:.0f}" for name, us in found["host_us"].items()))
    floats: dict[bool, dict[str, Any]] = {}
    formats = (True,) if is_compiled else (True, False)
    rows = itertools.chain.from_iterable(
        resnet50.measure(time_of, compiled=is_compiled, formats=formats, mode=mode, recorded=way)
        for way in recorded
    )
    for row in found.keep(add_floor(row, floats, row["channels_last"], bandwidth) for row in rows):
        base = floats[row["channels_last"]]
        print(
            f"resnet50 {row['model']:13s} kernels {row['kernels']!s:5s} ReLUs fused {row['fused_relus']!s:5s}"
            f" channels_last {row['channels_last']!s:5s}"
            f" compiled {is_compiled!s:5s} recorded {row['recorded']!s:5s}"
            f" {row['ms']:6.1f} ms {row['ms'] / base['ms']:4.2f}x {row['ms'] / row['floor_ms']:4.2f} floor host"
            f" {row['host_ms']:5.1f} peak {row['peak_mb']:6.0f} MB {row['peak_mb'] / base['peak_mb']:4.2f}x"
            f" loss {row['loss']:.3f}"
        )


def ask_resnet50_forms(bandwidth: float, found: Found) -> None:
    """Quantizers as opaque operators and as arithmetic that inductor fuses, in compiled steps."""
    show_rows(resnet50_forms.measure(found["seconds"] or 240, bandwidth), found)


def show_rows(rows: Iterable[dict[str, Any]], found: Found) -> None:
    """Keep and print rows as they come."""
    for row in found.keep(rows):
        print(" ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))


def ask_packed_decode(bandwidth: float, found: Found) -> None:
    """Tokens per second of a model with packed weights, beside bfloat16, with the shapes of Llama-2-7B."""
    for way, rows in on_gpu.decode_table(on_gpu.shapes_of_7b(8), on_gpu.WIDTHS):
        found[way] = rows
        found.write()
        print(way, json.dumps(rows, indent=1))


def ask_tests(bandwidth: float, found: Found) -> None:
    """All tests that need a GPU; their output goes to a file beside the result."""
    log = found.path.with_suffix(".txt")
    words = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "tests"]
    if importlib.util.find_spec("xdist"):
        words += ["-n", "6", "-p", "no:benchmark"]  # pytest-benchmark warns of xdist, and warnings are errors
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            words, stdout=file, stderr=subprocess.STDOUT, cwd=ROOT, start_new_session=True
        )
        try:
            found["returncode"] = process.wait()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            found["last_lines"] = log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]
            print(*found["last_lines"], sep="\n")


QUESTIONS: dict[str, Callable[[float, dict[str, Any]], None]] = {
    "fake_quant": ask_fake_quant,
    "grouped": ask_grouped,
    "packed_matmul": ask_packed_matmul,
    "packed_many": ask_packed_many,
    "packed_decode": ask_packed_decode,
    "packed_tiles_vector": lambda _, found: show_rows(packed_tiles.measure_vector(time_of), found),
    "packed_tiles_matrix": lambda _, found: show_rows(packed_tiles.measure_matrix(time_of), found),
    "packed_tiles_warpgroup": lambda _, found: show_rows(packed_tiles.measure_warpgroup(time_of), found),
    "packed_tiles_unpacked": lambda _, found: show_rows(packed_tiles.measure_unpacked(time_of), found),
    "compiled": ask_compiled,
    "resnet50": ask_resnet50,
    "resnet50_compiled": lambda bandwidth, found: ask_resnet50(bandwidth, found, is_compiled=True),
    "resnet50_graphs": lambda bandwidth, found: ask_resnet50(bandwidth, found, True, "reduce-overhead"),
    "resnet50_recorded": lambda bandwidth, found: ask_resnet50(bandwidth, found, recorded=(False, True)),
    "resnet50_forms": ask_resnet50_forms,
    "reconstruction": lambda bandwidth, found: show_rows(reconstruction.measure(), found),
    "semi_structured": lambda bandwidth, found: show_rows(semi_structured.measure(bandwidth, time_of), found),
    "calibration": lambda bandwidth, found: show_rows(calibration.measure(), found),
    "gptq": lambda bandwidth, found: show_rows(gptq.measure(), found),
    "tests": ask_tests,
}
# What did not run on a GPU since the code changed, or is not measured, in calls of less than 10 minutes: questions, and
# the seconds for each. Loading and measuring the copy takes some 20 seconds more.
CALLS: dict[int, dict[str, int]] = {
    1: {"tests": 240, "fake_quant": 100, "compiled": 170},
    2: {"semi_structured": 130, "packed_matmul": 140, "reconstruction": 110, "resnet50": 110, "grouped": 30},
    3: {"resnet50_forms": 220, "gptq": 180, "calibration": 50, "packed_decode": 70},
}


class TimeIsUp(BaseException):
    """Ends a question; not an Exception, because compilers wrap those in their own."""


def stop(*_: Any) -> None:
    """End a question whose time is up."""
    raise TimeIsUp("the time of this question is up")


def read_words(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line, with what it asks for as seconds by question (0: no limit) in ``plan``."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "question", nargs="*", help=f"{', '.join(QUESTIONS)}; fake_quant=30 ends it after 30 s"
    )
    parser.add_argument("--call", type=int, choices=CALLS)
    parser.add_argument("--dry-run", action="store_true", help="say what would be done; needs no GPU")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    asked = parser.parse_args(argv)
    asked.plan = dict(CALLS.get(asked.call, {}))
    for word in asked.question:
        question, _, seconds = word.partition("=")
        if question not in QUESTIONS:
            parser.error(f"there is no question {question!r}; there are: {', '.join(QUESTIONS)}")
        asked.plan[question] = int(seconds or 0)
    if not asked.plan:
        parser.error("name a question, or a call: --call 1")
    return asked


def main(argv: Sequence[str] | None = None) -> None:
    """Answer the questions named on the command line."""
    asked = read_words(argv)
    paths = {question: asked.out / f"gpu_{question}.json" for question in asked.plan}
    if asked.dry_run:
        for question, seconds in asked.plan.items():
            print(f"{question}: at most {seconds} s, to {paths[question]}")
        print(f"together {sum(asked.plan.values())} s")
        return
    asked.out.mkdir(parents=True, exist_ok=True)
    bandwidth = measure_copy()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e12:.2f} TB/s")
    signal.signal(signal.SIGALRM, stop)
    for question, seconds in asked.plan.items():
        environment = describe(1, ("torch", "triton"))
        found = Found(
            paths[question], environment=environment, copy_bytes_per_second=bandwidth, seconds=seconds
        )
        found.write()
        start = time.monotonic()
        signal.alarm(seconds)
        try:
            QUESTIONS[question](bandwidth, found)
        except (Exception, TimeIsUp) as error:
            traceback.print_exc()
            found["error"] = traceback.format_exception_only(error)[-1].splitlines()[0]
        finally:
            signal.alarm(0)
        found.write()
        print(f"== {question}: {time.monotonic() - start:.0f} s", flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
