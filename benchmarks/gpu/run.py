"""Check the GPU kernels against their references, then time them: ``python -m benchmarks.gpu.run fake_quant``.

Prints a table and writes ``gpu_<question>.json`` to the folder in ``OUT`` (or ``--out``). A kernel that fails its
check is reported and still timed where it runs; the others go on.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable
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
    semi_structured,
)


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


def ask_fake_quant(bandwidth: float, found: dict[str, Any]) -> None:
    """Fused fake-quantization."""
    cases = [
        fake_quant.Case(c.shape, c.layout, dtype, "uint8", c.channels_last)
        for c in fake_quant.TIMED.values()
        for dtype in (torch.float32, torch.bfloat16)
    ] + fake_quant.draw_cases(300, seed=1)
    found["check"] = check("fake_quant", cases, lambda case: fake_quant.compare(case, "cuda"), 8)
    found["compiled"] = check("fake_quant compiled", ["x"], lambda _: fake_quant.compare_compiled())
    found["rows"] = []
    for row in fake_quant.measure(bandwidth, time_of):  # printed one by one: a run may be cut short
        found["rows"].append(row)
        print(
            f"{row['case'][:38]:38s} {row['dtype'][:6]} {'learned' if row['learned'] else 'fixed':7s}"
            f" floor {row['floor_us']:6.1f} fused {row['fused_us']:6.1f} {row['fused_over_floor']:5.2f}x"
            f" plain {row['plain_over_floor']:5.2f}x"
            f" eager {row['fused_eager_us']:5.0f} {row['plain_eager_us']:5.0f}"
        )


def ask_packed_matmul(bandwidth: float, found: dict[str, Any]) -> None:
    """Products with a packed weight."""
    cases = [packed_matmul.Case(*shape, batch) for shape in packed_matmul.SHAPES for batch in (1, 16, 64)]
    cases += packed_matmul.draw_cases(150, seed=1)
    found["check"] = check("packed_matmul", cases, lambda case: packed_matmul.compare(case, "cuda"), 10)
    found["rows"] = []
    for row in packed_matmul.measure(bandwidth, time_of):
        found["rows"].append(row)
        print(
            f"{row['shape']!s:14s} {row['code']:5s} groups of {row['group_size']!s:4s} batch {row['batch']:4d}"
            f" floor {row['floor_us']:6.1f} bf16 {row['bf16_us']:6.1f} packed {row['packed_us']:6.1f}"
            f" ({row['bf16_us'] / row['packed_us']:4.2f}x, {row['packed_us'] / row['floor_us']:4.2f} floor)"
        )


def ask_grouped(bandwidth: float, found: dict[str, Any]) -> None:
    """Weights snapped together, beside each alone."""
    cases = [(kind, dtype) for kind in ("lsq", "uniform") for dtype in (torch.float32, torch.bfloat16)]
    found["check"] = check("grouped", cases, lambda case: grouped.compare(*case), loud=True)


def ask_compiled(bandwidth: float, found: dict[str, Any]) -> None:
    """``torch.compile`` of quantized models, without a graph break, beside the same models as they are."""
    found["small"] = check("compiled", compiled.CASES, compiled.compare, 45, loud=True)
    found["zoo"] = check("compiled zoo", list(zoo.SAMPLE), zoo.find_failure, 45, loud=True)


def ask_resnet50(
    bandwidth: float, found: dict[str, Any], is_compiled: bool = False, mode: str | None = None
) -> None:
    """A training step of ResNet-50 in bfloat16, beside the float step."""
    x = torch.zeros(1, device="cuda", dtype=torch.bfloat16)
    found.update({"host_us": resnet50.profile_host(x), "rows": []})
    print("host, us: " + ", ".join(f"{name} {us:.0f}" for name, us in found["host_us"].items()))
    floats: dict[bool, dict[str, Any]] = {}
    formats = (True,) if is_compiled else (True, False)
    for row in resnet50.measure(time_of, compiled=is_compiled, formats=formats, mode=mode):
        found["rows"].append(row)
        base = floats.setdefault(row["channels_last"], row)
        print(
            f"resnet50 {row['model']:13s} kernels {row['kernels']!s:5s}"
            f" channels_last {row['channels_last']!s:5s}"
            f" compiled {is_compiled!s:5s} {row['ms']:6.1f} ms {row['ms'] / base['ms']:4.2f}x host"
            f" {row['host_ms']:5.1f} peak {row['peak_mb']:6.0f} MB {row['peak_mb'] / base['peak_mb']:4.2f}x"
            f" loss {row['loss']:.3f}"
        )


def show_rows(rows: Iterable[dict[str, Any]], found: dict[str, Any]) -> None:
    """Keep and print rows as they come: a run may be cut short."""
    found["rows"] = []
    for row in rows:
        found["rows"].append(row)
        print(" ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))


QUESTIONS: dict[str, Callable[[float, dict[str, Any]], None]] = {
    "fake_quant": ask_fake_quant,
    "grouped": ask_grouped,
    "packed_matmul": ask_packed_matmul,
    "packed_tiles_vector": lambda _, found: show_rows(packed_tiles.measure_vector(time_of), found),
    "packed_tiles_matrix": lambda _, found: show_rows(packed_tiles.measure_matrix(time_of), found),
    "packed_tiles_unpacked": lambda _, found: show_rows(packed_tiles.measure_unpacked(time_of), found),
    "compiled": ask_compiled,
    "resnet50": ask_resnet50,
    "resnet50_compiled": lambda bandwidth, found: ask_resnet50(bandwidth, found, is_compiled=True),
    "resnet50_graphs": lambda bandwidth, found: ask_resnet50(bandwidth, found, True, "reduce-overhead"),
    "reconstruction": lambda bandwidth, found: show_rows(reconstruction.measure(), found),
    "semi_structured": lambda bandwidth, found: show_rows(semi_structured.measure(time_of), found),
    "calibration": lambda bandwidth, found: show_rows(calibration.measure(), found),
    "gptq": lambda bandwidth, found: show_rows(gptq.measure(), found),
}


class TimeIsUp(BaseException):
    """Ends a question; not an Exception, because compilers wrap those in their own."""


def stop(*_: Any) -> None:
    """End a question whose time is up."""
    raise TimeIsUp


def main() -> None:
    """Answer the questions named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "question", nargs="+", help=f"{', '.join(QUESTIONS)}; fake_quant=30 ends it after 30 s"
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    asked = parser.parse_args()
    bandwidth = measure_copy()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e12:.2f} TB/s")
    signal.signal(signal.SIGALRM, stop)
    for word in asked.question:
        question, _, seconds = word.partition("=")
        found: dict[str, Any] = {"environment": describe(1, ("torch", "triton"))}
        found["copy_bytes_per_second"] = bandwidth
        start = time.monotonic()
        signal.alarm(int(seconds or 0))
        try:
            QUESTIONS[question](bandwidth, found)
        except (Exception, TimeIsUp):
            traceback.print_exc()
            found["error"] = traceback.format_exc()
        finally:
            signal.alarm(0)
        print(f"== {question}: {time.monotonic() - start:.0f} s")
        (asked.out / f"gpu_{question}.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
