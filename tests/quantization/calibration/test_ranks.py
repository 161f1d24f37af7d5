"""Calibration on several processes, each with a part of the data, is that of one process that has it all."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from torch import Tensor

from sparsebit.errors import SparsebitError
from sparsebit.processes import ProcessError
from sparsebit.quantization import OBSERVERS, QuantModel
from sparsebit.quantization.algorithms.reconstruction import finished_blocks
from tests.quantization.nets import config, images, residual
from tests.quantization.training.test_training import training
from tests.ranks import join_group, needs_distributed, run_ranks, watch_writes

BATCHES = tuple(images(2 + seed, seed) * (1 + seed) for seed in range(4))
# Which of the batches each rank has: of different number, and one has none.
SHARES = {2: ((0, 1, 2), (3,)), 3: ((0,), (1, 2, 3), ())}
RECOVERY = [{"equalization": {}}, {"bias_correction": {}}, {"adaround": {"steps": 6}}]


def quantized(
    batches: list[Tensor], observer: str = "minmax", folder: str | None = None, **options: Any
) -> Any:
    recovery = options.pop("recovery", [])
    settings = config(A__OBSERVER__TYPE=observer, SCHEDULE__RECOVERY=recovery)
    qmodel = QuantModel(residual(), settings, images())
    qmodel.calibrate(batches, progress=False, folder=folder, **options)
    return dict(qmodel.state_dict())


def cases(batches: list[Tensor], folder: str | None) -> dict[str, Any]:
    """Every observer; layers that are measured behind quantized ones; and recovery steps, which look at the data."""
    found = {name: quantized(batches, name) for name in OBSERVERS}
    found["asym"] = quantized(batches, "percentile", asym=True, w_quant=True, a_quant=True)
    tuned = QuantModel(residual(), config(SCHEDULE={"BN_TUNING": True}), images())
    tuned.calibrate(batches, progress=False)
    with tuned.batchnorm_tuning():
        for batch in batches:
            tuned(batch)
    found["batch norm"] = dict(tuned.state_dict())
    found["recovery"] = quantized(batches, recovery=RECOVERY, folder=folder)
    return found


def work(rank: int, folder: str) -> None:
    writes = watch_writes(finished_blocks)
    for size, shares in SHARES.items():
        if rank >= size:
            continue
        join_group(rank, size, folder, f"store{size}")
        finished = Path(folder) / f"finished{size}"
        share = [BATCHES[index] for index in shares[rank]]
        found = cases(share, str(finished))
        torch.save((found, writes.copy()), f"{folder}/{size}.{rank}.pt")
        writes.clear()
        last = size - 1
        for case, bad in (("empty", []), ("nan", [BATCHES[0] * torch.nan])):
            try:
                quantized([] if case == "empty" else bad if rank == last else share)
            except Exception as error:
                Path(f"{folder}/{case}{size}{rank}.txt").write_text(str(error), encoding="utf-8")
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


@needs_distributed
def test_ranks_find_what_one_process_finds(tmp_path: Path) -> None:
    run_ranks(work, range(3), tmp_path)
    alone = cases(list(BATCHES), None)
    for size in SHARES:
        saved = [torch.load(tmp_path / f"{size}.{rank}.pt", weights_only=True) for rank in range(size)]
        found, writes = zip(*saved, strict=True)
        for case, expected in alone.items():
            for rank, one in enumerate(found):
                assert one[case].keys() == expected.keys()
                for name, tensor in expected.items():
                    if case in ("moving_average", "batch norm"):  # averages: sums of rounded products
                        torch.testing.assert_close(one[case][name], tensor, rtol=1e-5, atol=1e-6)
                    else:
                        assert one[case][name].equal(tensor), (size, rank, case, name)
        for rank in range(size):
            words = {"empty": "there was no calibration data", "nan": "NaN"}
            for case, said in words.items():
                message = (tmp_path / f"{case}{size}{rank}.txt").read_text(encoding="utf-8")
                assert said in message
                assert ("on another process" in message) == (case == "nan" and rank < size - 1)
        # What is finished is written once, by the first rank.
        assert sorted(writes[0]) == sorted(path.name for path in (tmp_path / f"finished{size}").iterdir())
        assert writes[0] and not any(writes[1:])


# -- a rank that dies -------------------------------------------------------------------------------------------------

DEADLY = ("calibrate", "reconstruction", "training", "language model")


def die() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def live_or_die(rank: int, case: str) -> None:
    """One piece of work; rank 1 is killed in the middle of it."""
    if case == "calibrate":
        batches = iter(BATCHES) if not rank else (die() for _ in range(2))
        quantized(batches)  # type: ignore[arg-type]
    elif case == "reconstruction":
        if rank:
            finished_blocks.FinishedBlocks.write = lambda *args: die()  # type: ignore[method-assign]
        quantized([BATCHES[rank]], recovery=RECOVERY, folder=None)
    elif case == "training":
        qmodel = training("uniform", observers="update")
        qmodel(images(4))
        if rank:
            die()
        qmodel(images(4))
    else:
        from sparsebit import llm
        from tests.llm.models import DECODERS, tokens

        ids = tokens(16 * 32)
        if rank:
            llm.quantize_blocks.solve_block = lambda *args: die()
        setting = {"METHOD": "gptq", "CALIBRATION": {"SAMPLES": 16, "LENGTH": 32}}
        llm.quantize(DECODERS["llama"](), ids, setting, progress=False)


def survive(rank: int, folder: str) -> None:
    """Rank 0 of one group after the other; the second rank of each is a process of its own."""
    for number, case in enumerate(DEADLY):
        if rank in (0, number + 1):
            join_group(min(rank, 1), 2, folder, f"store{number}")
            start = time.monotonic()
            try:
                live_or_die(rank, case)
            except ProcessError as error:
                lines = [str(error), f"{time.monotonic() - start:.0f}"]
                Path(f"{folder}/{number}.txt").write_text("\n".join(lines), encoding="utf-8")
            torch.distributed.destroy_process_group()


@needs_distributed
def test_a_rank_that_is_killed_ends_the_others_with_a_message(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    victims = range(1, len(DEADLY) + 1)
    run_ranks(survive, [0, *victims], tmp_path, killed=list(victims))
    for number in range(len(DEADLY)):
        *message, _ = (tmp_path / f"{number}.txt").read_text(encoding="utf-8").splitlines()
        assert message[0] == "another process of this run has ended, or does not answer", DEADLY[number]
        assert "start all of them again" in message[-1]


def differ(rank: int, folder: str) -> None:
    """On the second process another width, then other weights, other recovery steps, and another order of measuring."""
    join_group(rank, 2, folder)
    messages = []
    for what in ("width", "weights", "recovery", "asym"):
        other = what if rank else ""
        net = residual()
        next(net.parameters()).data += float(other == "weights")
        steps = RECOVERY[: int(other == "recovery")]
        settings = config(W__QUANTIZER__BIT=4 if other == "width" else 8, SCHEDULE__RECOVERY=steps)
        qmodel = QuantModel(net, settings, images())
        try:
            qmodel.calibrate([BATCHES[rank]], progress=False, asym=other == "asym")
        except SparsebitError as error:
            messages.append(error.message)
    Path(f"{folder}/{rank}.txt").write_text("\n".join(messages), encoding="utf-8")
    torch.distributed.destroy_process_group()


@needs_distributed
def test_processes_with_different_models_are_refused_on_all_of_them(tmp_path: Path) -> None:
    run_ranks(differ, range(2), tmp_path)
    for rank in range(2):
        said = (tmp_path / f"{rank}.txt").read_text(encoding="utf-8").splitlines()
        assert said == ["the model or its config differs between processes"] * 4
