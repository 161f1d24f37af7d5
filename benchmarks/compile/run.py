"""``torch.compile`` of quantized models of the tests' zoo: graph breaks, compilations, and the same numbers.

    python -m benchmarks.compile.run --out benchmarks/compile/results/cpu.json

Each model runs five times as it is and compiled: int8 in inference, LSQ at 4 bits in training. It passes where
torch.compile breaks the graph nowhere, compiles nothing after the second run, and gives what the model gives as it is.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo
import torch._inductor.config
import torch.utils._pytree as pytree
from torch import Tensor
from torch._dynamo.utils import counters

import sparsebit
from benchmarks.environment import describe
from tests.zoo import ZOO, outputs_of

SAMPLE = (
    "resnet18", "mobilenet_v2", "mobilenet_v3", "densenet", "repvgg", "unet", "pixel_shuffle_sr", "hf_bert_unmasked",
    "hf_vit", "hf_gpt2", "hf_llama", "hf_convnext", "transformer_encoder", "vit_sdpa", "mlp_mixer", "audio_cnn",
)  # fmt: skip
RUNS = 5
SEED = 0
LEARNED = {
    "BACKEND": "virtual",
    "W": {"QSCHEME": "per-channel-symmetric", "QUANTIZER": {"TYPE": "lsq", "BIT": 4}},
    "A": {"QSCHEME": "per-tensor-affine", "QUANTIZER": {"TYPE": "lsq", "BIT": 4}},
}


class Outcome(NamedTuple):
    """What happened to one model.

    Attributes:
        breaks: the reasons of graph breaks.
        graphs: how many graphs there were after two runs, and after all of them.
        difference: the largest one from the model as it is, relative to its largest value.
    """

    name: str
    training: bool
    breaks: list[str]
    graphs: tuple[int, int]
    difference: float
    seconds: float
    error: str | None = None

    @property
    def passed(self) -> bool:
        """Whether it is one graph that stays, to the same numbers."""
        return (
            not self.error and not self.breaks and self.graphs[0] == self.graphs[1] and self.difference < 1e-2
        )


def examine(name: str, *, training: bool, backend: str = "aot_eager", device: str = "cpu") -> Outcome:
    """One model of the zoo, as it is and compiled."""
    start = time.perf_counter()
    breaks: list[str] = []
    graphs, difference, error = (0, 0), 0.0, None
    torch._dynamo.reset()
    counters.clear()
    try:
        plain = _run(name, training, device, None)[0]
        # Attention has dropout of its own; inductor then draws the numbers that torch draws.
        with torch._inductor.config.patch(fallback_random=True):
            compiled, graphs = _run(name, training, device, backend)
        breaks = list(counters["graph_break"])
        pairs = zip(plain, compiled, strict=True)
        difference = max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-6)) for a, b in pairs)
    except Exception as problem:
        traceback.print_exc()
        error = f"{type(problem).__name__}: {str(problem).splitlines()[0]}"
    return Outcome(name, training, breaks, graphs, difference, time.perf_counter() - start, error)


def _examine_pair(pair: tuple[str, bool], backend: str, device: str) -> Outcome:
    return examine(pair[0], training=pair[1], backend=backend, device=device)


def find_failure(name: str) -> str | None:
    """What is wrong with a compiled model of the zoo in inference, or None."""
    outcome = examine(name, training=False)
    return None if outcome.passed else str(outcome)


def _run(name: str, training: bool, device: str, backend: str | None) -> tuple[list[Tensor], tuple[int, int]]:
    """Outputs of the last run, in training behind the gradients of the first; graphs after two runs and after all."""
    torch.manual_seed(SEED)
    entry = ZOO[name]
    net, (args, kwargs) = entry.make(), entry.inputs(2)
    qmodel = sparsebit.QuantModel(net, LEARNED if training else "int8_onnxruntime", args, kwargs)
    qmodel.calibrate([(args, kwargs)], progress=False, feed=lambda batch: batch[0] or batch[1])
    if training:
        qmodel.init_QAT(batch_norm="freeze")
    qmodel.to(device).train(training)
    for module in qmodel.modules():
        # Compiled code draws other random numbers.
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            module.eval()
    args, kwargs = pytree.tree_map_only(Tensor, lambda t: t.to(device), (args, kwargs))
    model: Any = qmodel if backend is None else torch.compile(qmodel, backend=backend)
    optimizer = torch.optim.SGD(qmodel.parameters(), lr=1e-4)
    found: list[Tensor] = []
    after_two = 0
    for run in range(RUNS):
        with torch.set_grad_enabled(training):
            outputs = [one for one in outputs_of(model(*args, **kwargs)) if one.is_floating_point()]
        if training:
            loss = sum(((one.float() ** 2).mean() for one in outputs), torch.zeros((), device=device))
            optimizer.zero_grad()
            loss.backward()
            if run == 0:
                found = [p.grad.clone() for p in qmodel.parameters() if p.grad is not None]
            optimizer.step()
        if run == 1:
            after_two = counters["stats"]["unique_graphs"]
    return [*found, *(one.detach().clone() for one in outputs)], (
        after_two,
        counters["stats"]["unique_graphs"],
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Examine the models, print a table, write the results; 1 where one of them failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=list(SAMPLE))
    parser.add_argument("--backend", default="aot_eager")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with a model of its own")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    if options.out is not None and options.out.exists():  # goes on with the models that are not there yet
        rows = json.loads(options.out.read_text(encoding="utf-8"))["rows"]
    done = {(row["name"], row["training"]) for row in rows}
    asked = [(name, training) for name in options.models for training in (False, True)]
    left = [one for one in asked if one not in done]
    look = functools.partial(_examine_pair, backend=options.backend, device=options.device)
    pool = ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn"))
    for row in pool.map(look, left) if options.workers > 1 else map(look, left):
        rows.append({**row._asdict(), "passed": row.passed})
        print(
            f"{'pass' if row.passed else 'FAIL'}  {row.name:20} {'training' if row.training else 'inference':9} graphs "
            f"{row.graphs[0]} then {row.graphs[1]}, breaks {len(row.breaks)}, difference {row.difference:.2g}, "
            f"{row.seconds:.0f} s {row.error or ''}",
            flush=True,
        )
        if options.out is not None:
            passed = sum(bool(one["passed"]) for one in rows)
            content = {
                "environment": describe(SEED),
                "backend": options.backend,
                "device": options.device,
                "passed": passed,
                "of": len(rows),
                "rows": rows,
            }
            options.out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if all(one["passed"] for one in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
