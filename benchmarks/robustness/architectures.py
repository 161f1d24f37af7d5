"""Random architectures through capture, quantization, export, pruning, save and load.

    python -m benchmarks.robustness.architectures --seed 0 --count 2000 --jobs 16 --output result.json

Every seed is a network of its own (``--show`` prints its source). Each stage ends in one of:

- ``ok``: equal, by a check that shares no code with the library;
- ``nothing``: there was nothing to quantize or to prune;
- ``refused``: an error of ours;
- ``fixed``: captured, and a call at another size is refused;
- ``told``: pruned, and the report says that statistics over channels change;
- ``unchecked``: this benchmark cannot tell (its own reference is not finite, or rounding decides what it gives);
- ``CRASH``: an error that is not ours, or the process died;
- ``WRONG``: a silent difference;
- ``SLOW``: longer than ``--seconds``.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.robustness.random_nets import write_net
from sparsebit import QuantModel, SparsebitError, SparseModel, capture

ROOT = Path(__file__).resolve().parents[2]
HALF = {"SPARSER": {"TYPE": "structured", "STRATEGY": "l1norm", "RATIO": 0.5, "ROUND_TO": 1}}
BAD = ("CRASH", "WRONG", "SLOW")
SHARE = 100  # networks between two reports
Outcome = tuple[str, str]
Inputs = Callable[..., tuple[Tensor, ...]]


class TooSlowError(BaseException):
    """Raised by the alarm; not an Exception, so that no handler of the library takes it."""


def load_net(seed: int, folder: Path) -> tuple[nn.Module, Inputs]:
    """The network of a seed from a file, so that messages can name its lines."""
    path = folder / f"net_{seed}.py"
    path.write_text(write_net(seed), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    torch.manual_seed(seed)
    net = module.Net()
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        # Every number its own: pruning is followed by the values of the weights.
        if tensor.is_floating_point():
            with torch.no_grad():
                noise = torch.rand_like(tensor) + 0.5
                tensor.copy_(noise if "var" in name else tensor + 0.1 * (noise - 1))
    return net.eval(), module.inputs


def leaves(result: Any) -> list[Tensor]:
    """The tensors of a result, in order."""
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def difference(found: Any, expected: Any) -> float:
    """Largest difference over the largest expected number; infinite where shapes differ."""
    worst = 0.0
    if len(leaves(found)) != len(leaves(expected)):
        return float("inf")
    for one, other in zip(leaves(found), leaves(expected), strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return float("inf")
        if not torch.equal(one, other):
            scale = max(float(other.abs().max()), 1e-6)
            worst = max(worst, float((one.double() - other.double()).abs().max()) / scale)
    return worst if worst == worst else float("inf")


def call_with(model: nn.Module, call: tuple[Tensor, ...]) -> Any:
    """A call with copies: some networks write into their inputs."""
    return model(*(tensor.clone() for tensor in call))


def eager(net: nn.Module, call: tuple[Tensor, ...]) -> Any:
    """What torch says, or None where the network itself cannot take these sizes."""
    try:
        return call_with(net, call)
    except Exception:
        return None


def check_capture(net: nn.Module, inputs: Inputs, frontend: str) -> Outcome:
    """Equal to eager at the example, at another batch and at another size."""
    gm = capture(net, inputs(), frontend=frontend)  # type: ignore[arg-type]
    fixed = ""
    for batch, size in ((2, 0), (5, 0), (3, 4)):
        call = inputs(batch, size)
        expected = eager(net, call)
        if expected is None:
            continue
        try:
            found = call_with(gm, call)
        except SparsebitError as error:
            if (batch, size) == (2, 0):
                raise
            fixed = str(error)
            continue
        apart = difference(found, expected)
        if apart > 1e-5:
            return "WRONG", f"batch {batch}, size +{size}: relative difference {apart:.2g}"
    return ("fixed", fixed) if fixed else ("ok", "")


def doubled(net: nn.Module, call: tuple[Tensor, ...]) -> list[Tensor]:
    """What the network gives in float64, as float32."""
    torch.set_default_dtype(torch.float64)  # tensors made inside forward follow
    try:
        wide = tuple(t.double() if t.is_floating_point() else t for t in call)
        found = leaves(copy.deepcopy(net).double()(*wide))
    finally:
        torch.set_default_dtype(torch.float32)
    return [t.float() if t.is_floating_point() else t for t in found]


def check_quantized(net: nn.Module, inputs: Inputs, folder: Path) -> Outcome:
    """Our own session of the file, against the quantized model, at two batches; and the saved folder."""
    import onnxruntime

    qmodel = QuantModel(net, "int8_onnxruntime", example_inputs=inputs())
    if not qmodel.quantizers:
        return "nothing", ""
    qmodel.calibrate([inputs(4), inputs(4)], progress=False)
    path = folder / "a.onnx"
    qmodel.export_onnx(inputs(), path)
    qmodel.save(folder / "q")
    again = QuantModel.load(folder / "q", copy.deepcopy(net))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (2, 3):
        call = inputs(batch)
        floats, fake = leaves(call_with(net, call)), leaves(call_with(qmodel, call))
        if (apart := difference(call_with(again, call), fake)) > 0:
            return "WRONG", f"the loaded model differs by {apart:.2g}"
        slots = session.get_inputs()
        if any(isinstance(slot.shape[0], int) and slot.shape[0] != batch for slot in slots):
            continue  # a batch that is fixed in the file
        named = {f"x{place}": tensor.numpy() for place, tensor in enumerate(call)}
        filed = session.run(None, {slot.name: named[slot.name] for slot in slots})
        for one, quantized, exact in zip(filed, fake, floats, strict=True):
            allowed = float((quantized - exact).norm()) + 1e-3 * float(exact.norm()) + 1e-5
            apart = float((torch.from_numpy(one) - quantized).norm())
            if apart > 2 * allowed:
                said = f"batch {batch}: the file is {apart:.3g} from the model, which is {allowed:.3g} from float"
                if difference(doubled(net, call), floats) > 1e-3:
                    return "unchecked", f"{said}; the last bit of a float32 decides what the network gives"
                return "WRONG", said
    return "ok", ""


def masked_original(net: nn.Module, small: nn.Module) -> nn.Module:
    """The original with zeros where the smaller model has no number, found by the numbers themselves."""
    left = {**dict(small.named_parameters()), **dict(small.named_buffers())}
    masked = copy.deepcopy(net)
    for name, tensor in [*masked.named_parameters(), *masked.named_buffers()]:
        if name not in left or left[name].shape == tensor.shape or "running_" in name:
            continue
        with torch.no_grad():
            present = torch.isin(tensor, left[name])
            tensor.mul_(present)
            owner = masked.get_submodule(name.rpartition(".")[0])
            if name.endswith(".weight") and isinstance(owner, nn.LayerNorm | nn.RMSNorm | nn.GroupNorm):
                owner.forward = _over_survivors(owner, present)  # type: ignore[method-assign]
    return masked


def _over_survivors(norm: nn.Module, present: Tensor) -> Callable[[Tensor], Tensor]:
    """The norm with its statistics over the channels that are left."""

    def last_axis(x: Tensor) -> Tensor:
        part = x[..., present]
        bias = getattr(norm, "bias", None)
        if isinstance(norm, nn.RMSNorm):
            epsilon = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
            done = part * torch.rsqrt(part.square().mean(-1, keepdim=True) + epsilon)
        else:
            done = (part - part.mean(-1, keepdim=True)) * torch.rsqrt(
                part.var(-1, keepdim=True, correction=0) + norm.eps
            )
        done = done * norm.weight[present] + (0 if bias is None else bias[present])
        return torch.zeros_like(x).index_copy(-1, present.nonzero()[:, 0], done)

    def by_group(x: Tensor) -> Tensor:
        result = torch.zeros_like(x)
        for members in torch.arange(len(present)).chunk(norm.num_groups):
            stays = members[present[members]]
            if len(stays):
                part = x[:, stays].flatten(1)
                done = (part - part.mean(1, keepdim=True)) * torch.rsqrt(
                    part.var(1, keepdim=True, correction=0) + norm.eps
                )
                shape = (1, -1, *[1] * (x.dim() - 2))
                done = done.view_as(x[:, stays]) * norm.weight[stays].view(shape)
                result[:, stays] = done + norm.bias[stays].view(shape)
        return result

    return by_group if isinstance(norm, nn.GroupNorm) else last_axis


def check_pruned(net: nn.Module, inputs: Inputs, folder: Path) -> Outcome:
    """Half of the channels, in float64, against the masked original; and the saved folder."""
    from sparsebit.sparse import load, save

    net = copy.deepcopy(net).double()

    def doubles(batch: int) -> tuple[Tensor, ...]:
        return tuple(t.double() if t.is_floating_point() else t for t in inputs(batch))

    torch.set_default_dtype(torch.float64)  # tensors made inside forward follow
    try:
        smodel = SparseModel(net, HALF, example_inputs=doubles(2))
        try:
            smodel.calc_params()
        except SparsebitError as error:
            if error.message.startswith("nothing could be pruned"):
                return "nothing", error.message
            raise
        small = smodel.shrink()
        save(small, folder / "s")
        again = load(folder / "s", copy.deepcopy(net))
        masked = masked_original(net, small)
        for batch in (2, 3):
            call = doubles(batch)
            found, expected = call_with(small, call), call_with(masked, call)
            if (apart := difference(call_with(again, call), found)) > 0:
                return "WRONG", f"the loaded model differs by {apart:.2g}"
            if not all(bool(torch.isfinite(leaf).all()) for leaf in leaves(expected)):
                return "unchecked", "the masked original is not finite"
            apart = difference(found, expected)
            if apart > 1e-6:
                if smodel.report().statistics:
                    return "told", smodel.report().statistics
                return "WRONG", f"batch {batch}: relative difference {apart:.2g}"
    finally:
        torch.set_default_dtype(torch.float32)
    return "ok", ""


def attempt(check: Callable[[], Outcome], seconds: int) -> Outcome:
    """The outcome of a stage, whatever happens in it."""

    def ring(*_: Any) -> None:
        raise TooSlowError

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return check()
    except SparsebitError as error:
        return "refused", str(error)[:600]
    except TooSlowError:
        return "SLOW", f"over {seconds} s"
    except Exception as error:
        places = [
            f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)[-4:]
        ]
        return "CRASH", f"{type(error).__name__}: {str(error)[:300]} at {' < '.join(reversed(places))}"
    finally:
        signal.alarm(0)


def check_seed(seed: int, seconds: int) -> dict[str, Outcome]:
    """All stages of one network."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        net, inputs = load_net(seed, folder)
        return {
            "capture": attempt(lambda: check_capture(net, inputs, "record"), seconds),
            "symbolic": attempt(lambda: check_capture(net, inputs, "symbolic"), seconds),
            "quantize": attempt(lambda: check_quantized(net, inputs, folder), seconds),
            "prune": attempt(lambda: check_pruned(net, inputs, folder), seconds),
        }


def work(seeds: list[int], seconds: int, until: float) -> None:
    """One process's share: a line of JSON for every seed, until it is time to stop."""
    torch.set_num_threads(1)
    for seed in seeds:
        if time.time() > until:
            return
        print(json.dumps({"seed": seed, "stages": check_seed(seed, seconds)}), flush=True)


def follow(seeds: list[int], seconds: int, until: float, found: dict[int, dict[str, Outcome]]) -> None:
    """Run a share in a process of its own; a seed that ends the process is a crash, and the next one goes on."""
    while seeds and time.time() < until:
        command = [sys.executable, "-m", "benchmarks.robustness.architectures", "--seconds", str(seconds)]
        command += ["--until", str(until), "--seeds", ",".join(map(str, seeds))]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert process.stdout is not None and process.stderr is not None
        said: list[str] = []
        reader = threading.Thread(target=said.extend, args=(process.stderr,))
        reader.start()
        for line in process.stdout:
            if line.startswith('{"seed"'):
                told = json.loads(line)
                found[told["seed"]] = told["stages"]
        process.wait()
        reader.join()
        seeds = [seed for seed in seeds if seed not in found]
        if seeds and process.returncode:
            why = f"the process ended with {process.returncode}: {''.join(said)[-300:]}"
            found[seeds.pop(0)] = {"process": ("CRASH", why)}


def summarize(found: Mapping[Any, dict[str, Outcome]]) -> dict[str, Any]:
    """Counts by stage, the failures by seed or name, and the reasons for refusals by how often they came."""
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    for stages in found.values():
        for stage, (outcome, text) in stages.items():
            counts.setdefault(stage, Counter())[outcome] += 1
            if outcome == "refused":
                reasons[f"{stage}: {text.splitlines()[0][:160]}"] += 1
    failing = {
        seed: {stage: list(outcome) for stage, outcome in stages.items() if outcome[0] in BAD}
        for seed, stages in sorted(found.items())
        if any(outcome[0] in BAD for outcome in stages.values())
    }
    refused = {
        stage: [seed for seed, stages in sorted(found.items()) if stages.get(stage, ("", ""))[0] == "refused"]
        for stage in counts
    }
    return {
        "networks": len(found),
        "counts": {stage: dict(counter.most_common()) for stage, counter in counts.items()},
        "failing": failing,
        "refused": {stage: seeds for stage, seeds in refused.items() if seeds},
        "reasons": dict(reasons.most_common(40)),
    }


def run(seeds: range, jobs: int, seconds: int, until: float) -> dict[str, Any]:
    """Networks, divided among processes."""
    found: dict[int, dict[str, Outcome]] = {}
    began = time.time()
    shares = [list(seeds[job::jobs]) for job in range(jobs)]
    threads = [threading.Thread(target=follow, args=(share, seconds, until, found)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"first seed": seeds[0], "took_s": round(time.time() - began, 1), **summarize(found)}


def join(earlier: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """Two summaries of seeds that follow each other as one."""
    counts = {
        stage: dict(Counter(earlier["counts"].get(stage, {})) + Counter(later["counts"].get(stage, {})))
        for stage in {**earlier["counts"], **later["counts"]}
    }
    refused = {
        stage: [*earlier["refused"].get(stage, []), *later["refused"].get(stage, [])]
        for stage in {**earlier["refused"], **later["refused"]}
    }
    return {
        "first seed": earlier["first seed"],
        "took_s": round(earlier["took_s"] + later["took_s"], 1),
        "networks": earlier["networks"] + later["networks"],
        "counts": counts,
        "failing": {**earlier["failing"], **later["failing"]},
        "refused": refused,
        "reasons": dict((Counter(earlier["reasons"]) + Counter(later["reasons"])).most_common(40)),
    }


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=120, help="limit for one stage of one network")
    parser.add_argument("--total", type=int, default=86_400, help="begin no more after this many seconds")
    parser.add_argument(
        "--output", type=Path, help="a JSON file, kept up to date; its seeds are not run again"
    )
    parser.add_argument("--show", action="store_true", help="print the source of --seed and stop")
    parser.add_argument("--seeds", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.show:
        print(write_net(arguments.seed))
        return
    if arguments.seeds:
        work([int(seed) for seed in arguments.seeds.split(",")], arguments.seconds, arguments.until)
        return
    from benchmarks.environment import describe

    environment = describe(arguments.seed, ("torch", "numpy", "onnx", "onnxruntime"))

    until = time.time() + arguments.total
    result: dict[str, Any] | None = None
    if arguments.output and arguments.output.is_file():
        result = json.loads(arguments.output.read_text(encoding="utf-8"))
    begin = arguments.seed + (result["networks"] if result else 0)
    for first in range(begin, arguments.seed + arguments.count, SHARE):
        if time.time() > until:
            break
        part = range(first, min(first + SHARE, arguments.seed + arguments.count))
        later = run(part, arguments.jobs, arguments.seconds, time.time() + 86_400)
        result = join(result, later) if result else later
        if arguments.output:
            text = json.dumps({"environment": environment, **result}, indent=1)
            arguments.output.write_text(text + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
