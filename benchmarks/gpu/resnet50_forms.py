"""A compiled training step of ResNet-50 with quantizers as opaque operators and as arithmetic that inductor fuses.

Every configuration is a process of its own: they compile at the same time, on one core each, and are then timed one
after the other, in turns. What compiles longer than the time there is does not take part.

    python -m benchmarks.gpu.run resnet50_forms=200
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu import compiled, fake_quant, resnet50
from sparsebit.kernels import snap_lowering

ROOT = Path(__file__).resolve().parents[2]
FLOAT = "float"
CONFIGURATIONS = [
    (FLOAT, "-", "reduce-overhead"),
    ("lsq W4A4", "opaque", "reduce-overhead"),
    ("lsq W4A4", "fused", "reduce-overhead"),
    ("lsq W4A4", "fused", "8 reads"),
    ("uniform W8A8", "fused", "reduce-overhead"),
    (FLOAT, "-", "default"),
    ("lsq W4A4", "fused", "default"),
]
# As inductor's settings. With more reads in one kernel it computes batch norm again, instead of storing the result.
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "reduce-overhead": {"triton.cudagraphs": True},
    "8 reads": {"triton.cudagraphs": True, "realize_reads_threshold": 8},
}
CHECK = ("check", "fused", "default")
ROUNDS = 3
KINDS = ("lsq", "uniform", "lsq+", "pact")


def measure(seconds: float, bandwidth: float, batch: int = 64, size: int = 224) -> Iterator[dict[str, Any]]:
    """One row for each configuration that is compiled in time, and one of the check."""
    ends = time.monotonic() + seconds - 25  # what timing takes
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        words = [str(batch), str(size)]
        found = {c: stack.enter_context(_child(Path(folder), c, words)) for c in [*CONFIGURATIONS, CHECK]}
        rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        for configuration, (process, log) in found.items():
            row = _wait(process, log, ends)
            rows[configuration] = dict(zip(("model", "form", "mode"), configuration, strict=True)) | row
        runs = [c for c in CONFIGURATIONS if "error" not in rows[c]]
        for _, configuration in itertools.product(range(ROUNDS), runs):
            process, log = found[configuration]
            _send(process, "time\n")
            answer = _wait(process, log, time.monotonic() + 10)
            rows[configuration].setdefault("ms_of_rounds", []).append(answer.get("ms"))
        floats: dict[bool, dict[str, Any]] = {}
        for configuration in runs:
            row = rows[configuration]
            row["ms"] = sorted(ms for ms in row["ms_of_rounds"] if ms is not None)[
                len(row["ms_of_rounds"]) // 2
            ]
            graphs = configuration[2] != "default"
            base = floats.setdefault(graphs, row) if configuration[0] == FLOAT else floats.get(graphs)
            if base is not None:
                row["floor_ms"] = base["ms"] + 1e3 * row["floor_bytes"] / bandwidth
                row["over_float"] = row["ms"] / base["ms"]
                row["memory_over_float"] = row["peak_mb"] / base["peak_mb"]
        yield from rows.values()


@contextlib.contextmanager
def _child(
    folder: Path, configuration: tuple[str, str, str], words: list[str]
) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    name = "-".join(configuration).replace(" ", "-")
    own = {"TORCHINDUCTOR_CACHE_DIR": str(folder / name), "TRITON_CACHE_DIR": str(folder / name / "triton")}
    environment = os.environ | own | {"TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "1"}
    log = folder / f"{name}.txt"
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.resnet50_forms", *configuration, *words], text=True, cwd=ROOT,
            stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT, env=environment,
        )  # fmt: skip
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


_read: dict[Path, int] = {}


def _wait(process: subprocess.Popen[str], log: Path, ends: float) -> dict[str, Any]:
    """The next answer of a child, which is a line of its log that begins with ``=``."""
    while True:
        ended = process.poll() is not None
        answers = [line[1:] for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("={")]
        if len(answers) > _read.get(log, 0):
            _read[log] = _read.get(log, 0) + 1
            return dict(json.loads(answers[_read[log] - 1]))
        if ended or time.monotonic() > ends:
            process.kill()
            return {
                "error": "ended" if ended else "out of time",
                "log": last_error(log.read_text(encoding="utf-8")),
            }
        time.sleep(0.05)


def last_error(log: str) -> str:
    """The line of a log that says which error ended a process; its last line if there was none."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt|Exit)\b", line)]
    return (errors or lines or [""])[-1]


def _send(process: subprocess.Popen[str], word: str) -> None:
    stream: IO[str] | None = process.stdin
    assert stream is not None
    stream.write(word)
    stream.flush()


def _say(answer: dict[str, Any]) -> None:
    print(f"={json.dumps(answer)}", flush=True)


def run(model: str, form: str, mode: str, batch: int, size: int) -> None:
    """One configuration: compile it, say what that took, then time it as often as a line is read."""
    from benchmarks.gpu.run import time_of

    snap_lowering.USED = form != "opaque"
    torch.manual_seed(0)
    net = resnet50.resnet50().to("cuda", torch.bfloat16, memory_format=torch.channels_last)
    x = torch.randn(batch, 3, size, size, device="cuda", dtype=torch.bfloat16)
    x = x.to(memory_format=torch.channels_last)
    labels = torch.randint(1000, (batch,), device="cuda")
    with torch.no_grad():  # statistics of batch norm
        for _ in range(30):
            net.train()(x)
    qmodel = net if model == FLOAT else resnet50.quantized(net, *resnet50.CONFIGS[model], x)
    moved = 0 if model == FLOAT else fake_quant.PASSES * resnet50.quantized_bytes(qmodel, x)
    eager = gradients_of(copy.deepcopy(qmodel), lambda net: net, x, labels)
    torch.cuda.empty_cache()
    start = time.monotonic()
    call = torch.compile(qmodel, options=MODES[mode])
    # Batch norm's statistics move a little in each step, which the results of training do not depend on.
    found = gradients_of(qmodel, lambda _: call, x, labels)
    seconds = time.monotonic() - start
    step = resnet50.make_step(qmodel, call, x, labels)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    _say(
        {
            "compile_s": seconds,
            "floor_bytes": moved,
            "peak_mb": torch.cuda.max_memory_allocated() / 2**20,
            "reserved_mb": torch.cuda.memory_reserved() / 2**20,
            "fuses": snap_lowering.register_where_used(),
            "loss": float(found["loss"]),
            **differences(eager, found),
        }
    )
    del eager, found
    for _ in sys.stdin:
        _say({"ms": time_of(step, repeats=15) / 1000})


def gradients_of(
    model: nn.Module, wrap: Callable[[nn.Module], Callable[..., Tensor]], x: Tensor, labels: Tensor
) -> dict[str, Tensor]:
    """The loss and the gradient of every parameter, in float32."""
    model.zero_grad(set_to_none=True)
    loss = F.cross_entropy(wrap(model)(x).float(), labels)
    loss.backward()
    found = {n: p.grad.float().clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return {"loss": loss.detach().clone(), **found}


def differences(eager: dict[str, Tensor], found: dict[str, Tensor]) -> dict[str, float]:
    """How far a compiled step is from an eager one."""
    weights = [name for name in eager if name != "loss" and not name.endswith("scale")]
    scales = [name for name in eager if name.endswith("scale")]
    return {
        "loss_difference": float((eager["loss"] - found["loss"]).abs() / eager["loss"]),
        "gradients_difference": _distance(eager, found, weights),
        **({"scales_difference": _distance(eager, found, scales)} if scales else {}),
    }


def _distance(a: dict[str, Tensor], b: dict[str, Tensor], names: list[str]) -> float:
    """Of all these together, relative."""
    first, second = (torch.cat([values[name].flatten() for name in names]) for values in (a, b))
    return float((first - second).norm() / first.norm())


def check() -> None:
    """Whether compiled quantizers give the numbers of the reference: alone, bit by bit, and in a small network."""
    wrong: dict[str, str | None] = {}
    cases: list[tuple[str, Callable[[], str | None]]] = [
        *(
            (str(case), lambda case=case: fake_quant.compare_lowered(case, "cuda"))
            for case in fake_quant.LOWERED
        ),
        *((kind, lambda kind=kind: compiled.compare(compiled.Case(kind))) for kind in KINDS),
    ]
    for name, compare in cases:
        try:
            wrong[name] = compare()
        except Exception as error:
            wrong[name] = repr(error)[-600:]
        print(name, wrong[name], flush=True)
    failed = {name: found for name, found in wrong.items() if found is not None}
    fuses = snap_lowering.register_where_used()
    _say({"fuses": fuses, "right": len(wrong) - len(failed), "of": len(wrong), "wrong": failed})


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for word in ("model", "form", "mode"):
        parser.add_argument(word)
    for word in ("batch", "size"):
        parser.add_argument(word, type=int)
    options = parser.parse_args()
    if options.model == CHECK[0]:
        check()
    else:
        run(**vars(options))
