"""Two processes, each with a part of the data, end where one ends that saw it all; an error on one ends both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.quantization import OBSERVERS, QuantModel, processes
from sparsebit.quantization.processes import gather_values, merge_across_processes, raise_together
from tests.quantization.nets import config, images, residual
from tests.quantization.observers.data import draw, feed

ROOT = Path(__file__).resolve().parents[2]
BATCHES = tuple(images(3, seed) * (1 + seed) for seed in range(3))
# The order of the data does not matter to these, so two processes must find what one finds.
ANY_ORDER = ("minmax", "percentile", "mse", "kl_histogram", "aciq")


def rows(rank: int) -> list[Tensor]:
    """Data of very different size, so that histograms must grow to meet."""
    x = draw("laplace", 6000, seed=rank).view(3, -1) * 10.0**rank
    return list(x.split(700, dim=1))


def scales(observer: str, batches: tuple[Tensor, ...], asym: bool = False) -> dict[str, Tensor]:
    qmodel = QuantModel(residual(), config(A__OBSERVER__TYPE=observer), images())
    qmodel.calibrate(batches, asym=asym, w_quant=asym, a_quant=asym, progress=False)
    return {name: quantizer.scale for name, quantizer in qmodel.quantizers.items()}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2
    )
    states: dict[str, Any] = {}
    for name in OBSERVERS:
        observer = OBSERVERS[name]()
        state = feed(observer, rows(rank))
        late = observer.init(rows(0)[0]) if rank else state  # one that saw nothing takes part as well
        states[name] = [tuple(merge_across_processes(observer, one)) for one in (state, late)]
    share = BATCHES[:1] if rank == 0 else BATCHES[1:]  # of different length
    found = {name: scales(name, share) for name in OBSERVERS}
    found["asym"] = scales("minmax", share, asym=True)
    torch.save((states, found), f"{folder}/{rank}.pt")
    for case, bad in (("empty", []), ("nan", [share[0] * torch.nan])):
        try:
            scales("minmax", share if rank == 0 else bad)
        except Exception as error:
            Path(f"{folder}/{case}{rank}.txt").write_text(str(error), encoding="utf-8")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
def test_two_processes_find_what_one_finds(tmp_path: Path) -> None:
    program = f"from {__name__} import work; work({{}}, {str(tmp_path)!r})"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program.format(rank)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(2)
    ]
    for process in started:
        printed, _ = process.communicate(timeout=240)
        assert process.returncode == 0, printed.decode()
    (states, first), (other, second) = (
        torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)
    )
    for name, (merged, alone) in states.items():
        observer = OBSERVERS[name]()
        exact = 1e-5 if observer.by_sample else 0
        torch.testing.assert_close(merged, tuple(feed(observer, rows(0) + rows(1))), rtol=exact, atol=0)
        torch.testing.assert_close(alone, tuple(feed(observer, rows(0))), rtol=exact, atol=0)
        assert all(a.equal(b) for a, b in zip(merged, other[name][0], strict=True))
    for key, found in first.items():
        assert all(torch.equal(scale, second[key][name]) for name, scale in found.items()), key
    for name in (*ANY_ORDER, "asym"):
        asym = name == "asym"
        alone = scales("minmax" if asym else name, BATCHES, asym=asym)
        torch.testing.assert_close(first[name], alone, rtol=1e-4, atol=0)
    # An error on one process ends both, with its message: neither waits for the other.
    for case, words in (("empty", "gave no batches"), ("nan", "NaN")):
        messages = [(tmp_path / f"{case}{rank}.txt").read_text(encoding="utf-8") for rank in range(2)]
        assert "on another process" in messages[0] and all(words in message for message in messages)


def test_one_process_has_its_own_values() -> None:
    assert gather_values("here") == ["here"]
    observer = OBSERVERS["minmax"]()
    state = feed(observer, rows(0))
    assert merge_across_processes(observer, state) is state
    raise_together(None)
    with pytest.raises(ValueError, match="mine"):
        raise_together(ValueError("mine"))


def test_an_error_elsewhere_is_raised_here_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "gather_values", lambda value: [value, "batch 3 holds NaN"])
    with pytest.raises(SparsebitError, match=r"another process: batch 3 holds NaN(.|\n)*rank 1"):
        raise_together(None)
    with pytest.raises(ValueError, match="mine"):  # each process raises its own
        raise_together(ValueError("mine"))
